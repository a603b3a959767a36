"""The contract of a registry source, as tests: subclass `RegistrySuite` and say how to make one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from rollout.core.errors import TaskNotFoundError
from rollout.core.protocols import API_VERSION, RegistrySource
from rollout.core.types import TaskFolder


class RegistrySuite:
    """What every registry source must do.

    The source has to offer at least one dataset with two tasks or more; the first such is used. Its second task may have
    any content: only that a folder is there is looked at.

        class TestMine(RegistrySuite):
            def make(self, cache_dir: Path, *, offline: bool = False) -> RegistrySource:
                context = RegistryContext(base_dir=Path(), cache_dir=cache_dir, offline=offline)
                return MyRegistry(MyOptions(server=SERVER), context)
    """

    works_offline_unfetched = False
    """The source needs nothing fetched: everything it offers is on this machine already."""

    def make(self, cache_dir: Path, *, offline: bool = False) -> RegistrySource:
        """A source that keeps what it fetches below `cache_dir`. Sources with one `cache_dir` share it."""
        raise NotImplementedError

    async def _first(self, source: RegistrySource) -> tuple[str, str | None, Sequence[TaskFolder]]:
        for info in await source.datasets():
            folders = await source.fetch(info.name, info.version)
            if len(folders) >= 2:
                return info.name, info.version, folders
        raise AssertionError("the source must offer a dataset with at least two tasks")

    def test_is_written_for_this_api_version(self, tmp_path: Path) -> None:
        source: Any = self.make(tmp_path)
        assert source.api_version[0] == API_VERSION[0]
        assert source.api_version <= API_VERSION

    async def test_making_a_source_fetches_nothing(self, tmp_path: Path) -> None:
        self.make(tmp_path / "cache")
        assert not (tmp_path / "cache").exists()

    async def test_datasets_are_listed_in_one_order(self, tmp_path: Path) -> None:
        listed = list(await self.make(tmp_path).datasets())
        assert listed
        assert listed == list(await self.make(tmp_path).datasets())

    async def test_a_listed_count_is_the_number_of_tasks(self, tmp_path: Path) -> None:
        source = self.make(tmp_path)
        for info in await source.datasets():
            if info.task_count:
                assert len(await source.fetch(info.name, info.version)) == info.task_count

    async def test_tasks_are_folders_on_this_machine_with_different_names(self, tmp_path: Path) -> None:
        _, _, folders = await self._first(self.make(tmp_path))
        assert all(folder.path.is_absolute() and folder.path.is_dir() and any(folder.path.iterdir()) for folder in folders)
        assert len({folder.name for folder in folders}) == len(folders)

    async def test_fetching_again_gives_the_same_folders_in_the_same_order(self, tmp_path: Path) -> None:
        source = self.make(tmp_path)
        name, version, folders = await self._first(source)
        assert list(await source.fetch(name, version)) == list(folders)
        assert list(await self.make(tmp_path).fetch(name, version)) == list(folders)

    async def test_only_selected_tasks_are_fetched(self, tmp_path: Path) -> None:
        name, version, folders = await self._first(self.make(tmp_path / "all"))
        wanted = folders[1].name
        chosen = await self.make(tmp_path / "some").fetch(name, version, select=lambda task: task == wanted)
        assert [folder.name for folder in chosen] == [wanted]

    async def test_every_task_is_offered_to_select_once_and_in_order(self, tmp_path: Path) -> None:
        source = self.make(tmp_path)
        name, version, folders = await self._first(source)
        offered: list[str] = []

        def none(task: str) -> bool:
            offered.append(task)
            return False

        assert list(await source.fetch(name, version, select=none)) == []
        assert offered == [folder.name for folder in folders]

    async def test_an_unknown_dataset_is_an_error_that_lists_what_there_is(self, tmp_path: Path) -> None:
        source = self.make(tmp_path)
        name, _, _ = await self._first(source)
        with pytest.raises(TaskNotFoundError) as raised:
            await source.fetch("no-such-dataset", None)
        assert "no-such-dataset" in str(raised.value)
        assert name in str(raised.value)

    async def test_an_unknown_version_is_an_error_that_lists_what_there_is(self, tmp_path: Path) -> None:
        source = self.make(tmp_path)
        name, version, _ = await self._first(source)
        with pytest.raises(TaskNotFoundError) as raised:
            await source.fetch(name, "no-such-version")
        assert "no-such-version" in str(raised.value)
        assert version is None or version in str(raised.value)

    async def test_what_was_fetched_is_there_offline(self, tmp_path: Path) -> None:
        name, version, folders = await self._first(self.make(tmp_path))
        offline = self.make(tmp_path, offline=True)
        assert [folder.path for folder in await offline.fetch(name, version)] == [folder.path for folder in folders]

    async def test_what_was_never_fetched_is_an_error_offline(self, tmp_path: Path) -> None:
        if self.works_offline_unfetched:
            pytest.skip("this source needs nothing fetched")
        name, version, _ = await self._first(self.make(tmp_path / "online"))
        with pytest.raises(TaskNotFoundError, match="offline"):
            await self.make(tmp_path / "empty", offline=True).fetch(name, version)
