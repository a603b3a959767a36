"""The planned tasks of a data set of rows: made one by one while trials are fed, never all at once."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, replace

import msgspec

from rollout.core.job.planned import PlannedTask
from rollout.core.tasks.rows import Row, RowDataset
from rollout.core.trial.paths import folder_name


def row_folder_key(id_: str) -> str:
    """What must differ between the rows of one data set so that their trials have folders of their own."""
    return folder_name(id_).casefold()


@dataclass(frozen=True)
class PlannedRows:
    """Iterating makes each row's PlannedTask from `shared`, which is everything that rows have in common."""

    rows: RowDataset
    shared: PlannedTask

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[PlannedTask]:
        """Raises TaskError: the file has changed since it was planned."""
        for position, row in enumerate(self.rows):
            yield self._planned(row, self._folder(row.id, position))

    def _folder(self, id_: str, position: int) -> str:
        folder = folder_name(id_)
        if position not in self.rows.unlike:
            return folder
        return f"{folder[:60]}-{hashlib.sha256(id_.encode('utf-8', 'surrogateescape')).hexdigest()[:16]}"

    def _planned(self, row: Row, folder: str) -> PlannedTask:
        shared, changed = self.shared, msgspec.structs.replace
        spec = changed(
            shared.spec, name=row.id, digest=row.digest, instruction=row.instruction, images=row.images, row=row.metadata
        )
        return replace(
            shared,
            spec=spec,
            environment=changed(shared.environment, task_name=row.id),
            folder=folder,
            fingerprint={**shared.fingerprint, "task": row.digest[:16]},
        )
