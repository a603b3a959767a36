"""The skills that a job gives an agent: folders on the host, and what an agent's class says that it can be given."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rollout.core.errors import ConfigError

SKILL = "SKILL.md"


def skill_folders(given: Sequence[str], base_dir: Path, where: str) -> list[Path]:
    """Each folder that is a skill, absolute; of a folder of skills, those in it.

    Raises:
        ConfigError: there is none, or there are two of one name.
    """
    found: dict[str, Path] = {}
    for text in given:
        folder = (base_dir / Path(os.path.expanduser(text))).absolute()
        inside = sorted(file.parent for file in folder.glob(f"*/{SKILL}"))
        skills = [folder] if (folder / SKILL).is_file() else inside
        if not skills:
            raise ConfigError(f"{where}: {folder} is no skill and holds none: there is no {SKILL}")
        for skill in skills:
            if found.setdefault(skill.name, skill) != skill:
                raise ConfigError(f"{where}: {found[skill.name]} and {skill} have one name")
    return list(found.values())


def equipment_of(agent: Any, options: Any) -> frozenset[str]:
    """What a class of agents says that it can be given; nothing, when it does not say."""
    said = getattr(agent, "equipment", None)
    return frozenset(said(options)) if said is not None else frozenset()
