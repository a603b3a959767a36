"""Reading rewards: what a reward file may hold, and which of several files counts.

Rules: spec 0 ("There are two ways to produce a reward file") and spec 2 for the map with `is_correct` and `signals`. Numbers
must be finite; text is one ASCII decimal number; a file is a regular one of at most 1 MiB.
"""

from __future__ import annotations

import math
import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rollout.core.config.document import parse_json
from rollout.core.errors import ConfigError, RewardInvalidError

MAX_REWARD_BYTES = 1024 * 1024

# Python's float() also takes underscores, Arabic digits, "nan" and "infinity"; a reward file may not.
_NUMBER = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]{1,4})?", re.ASCII)
_EPISODE_KEYS = frozenset({"reward", "is_correct", "signals", "metadata"})


def read_reward_file(path: Path, name: str) -> dict[str, float] | None:
    """The rewards of one file on the host, or None when it does not exist. `name` is its path for the reader of an error.

    Raises:
        RewardInvalidError: a link, not a regular file, over 1 MiB, or not what a reward file may hold.
    """
    try:
        status = os.lstat(path)
    except FileNotFoundError:
        return None
    if stat.S_ISLNK(status.st_mode) or not stat.S_ISREG(status.st_mode):
        raise RewardInvalidError(f"{name} is not a regular file")
    if status.st_size > MAX_REWARD_BYTES:
        raise RewardInvalidError(f"{name} has {status.st_size} bytes; a reward file has at most 1 MiB")
    data = path.read_bytes()
    return parse_reward_json(data, name) if name.endswith(".json") else {"reward": parse_reward_text(data, name)}


def parse_reward_text(data: bytes, name: str = "reward.txt") -> float:
    """The one finite number of a reward.txt.

    Raises:
        RewardInvalidError
    """
    text = data.decode("utf-8", "replace").strip()
    if not text:
        raise RewardInvalidError(f"{name} is empty; it must hold one number")
    if len(text) > 400 or not _NUMBER.fullmatch(text):
        raise RewardInvalidError(f"{name} holds {_shown(text)}, which is not one finite number")
    return _finite(float(text), name, text)


def parse_reward_json(data: bytes, name: str = "reward.json") -> dict[str, float]:
    """The rewards of a reward.json: a number, a flat map of numbers, or spec 2's `{reward, is_correct, signals, metadata}`.

    Raises:
        RewardInvalidError
    """
    try:
        value = parse_json(data, name)
    except ConfigError as error:
        raise RewardInvalidError(str(error)) from error
    if isinstance(value, dict) and _is_episode(value):
        return _episode_rewards(value, name)
    if not isinstance(value, dict):
        return {"reward": _number(value, name, "its value")}
    if not value:
        raise RewardInvalidError(f"{name} is an empty map; it must hold at least one number")
    return {key: _number(item, name, f"`{key}`") for key, item in value.items()}


def choose_rewards(candidates: Mapping[str, dict[str, float] | None]) -> tuple[str, dict[str, float], list[str]] | None:
    """The first file that exists, its rewards, and a warning for each other one that disagrees."""
    existing = {name: rewards for name, rewards in candidates.items() if rewards is not None}
    if not existing:
        return None
    chosen, *others = existing
    warnings = [
        f"{chosen} and {other} disagree ({existing[chosen]} and {existing[other]}); {chosen} counts"
        for other in others
        if not _agree(existing[chosen], existing[other])
    ]
    return chosen, existing[chosen], warnings


def check_rewards(rewards: Mapping[str, float]) -> dict[str, float]:
    """The rewards of any verifier, as finite floats.

    Raises:
        RewardInvalidError
    """
    if not rewards:
        raise RewardInvalidError("the verifier returned no reward")
    return {str(key): _number(value, "the verifier", f"`{key}`") for key, value in rewards.items()}


def _agree(first: Mapping[str, float], second: Mapping[str, float]) -> bool:
    shared = first.keys() & second.keys()
    return all(first[key] == second[key] for key in shared) if shared else False


def _is_episode(value: Mapping[str, Any]) -> bool:
    nested = {"signals", "metadata"} & value.keys()
    return "reward" in value and value.keys() <= _EPISODE_KEYS and (bool(nested) or isinstance(value.get("is_correct"), bool))


def _episode_rewards(value: Mapping[str, Any], name: str) -> dict[str, float]:
    rewards = {"reward": _number(value["reward"], name, "`reward`")}
    if "is_correct" in value:
        if not isinstance(value["is_correct"], bool):
            raise RewardInvalidError(f"{name}: `is_correct` must be true or false")
        rewards["is_correct"] = float(value["is_correct"])
    signals = value.get("signals") or {}
    if isinstance(signals, list):
        pairs = [(item.get("name"), item.get("value")) for item in signals if isinstance(item, dict)]
        if len(pairs) != len(signals) or not all(isinstance(key, str) for key, _ in pairs):
            raise RewardInvalidError(f"{name}: each of `signals` must have a name and a value")
    elif isinstance(signals, dict):
        pairs = list(signals.items())
    else:
        raise RewardInvalidError(f"{name}: `signals` must be a map or a list")
    for key, item in pairs:
        rewards.setdefault(str(key), _number(item, name, f"signal `{key}`"))
    return rewards


def _number(value: Any, name: str, what: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise RewardInvalidError(f"{name}: {what} is {_shown(str(value))}, which is not a number")
    try:
        return _finite(float(value), name, value)
    except OverflowError as error:
        raise RewardInvalidError(f"{name}: {what} is too large for a number") from error


def _finite(number: float, name: str, shown: object) -> float:
    if not math.isfinite(number):
        raise RewardInvalidError(f"{name} holds {_shown(str(shown))}, which is not a finite number")
    return number


def _shown(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:57] + "...")


def own_reward_files(verifier: Any, options: Any) -> tuple[str, ...]:
    """Where a verifier looks for rewards before the usual places."""
    named = getattr(verifier, "reward_files", None)
    return tuple(named(options)) if named is not None else ()
