"""One rule for what verifiers and reward functions may return: what it means as rewards, or that it is not a verdict.

| returned | rewards |
|---|---|
| `True`, `False` | 1.0, 0.0 |
| a finite number, text that is one, a numpy scalar | that number |
| `(0.5, True)` | 0.5, and `is_correct` |
| `{"reward": 0.5, "is_correct": ..., "signals": ..., "metadata": ...}` | as it says; other numbers in it are rewards too |
| `{"score": 0.5}`, `{"passed": True}` | 0.5, 1.0 |
| another map of finite numbers | that map |
| `EvalOutput`, `VerifyResult` | as it says |

`None`, NaN, infinity, an empty map and anything else are errors, never 0.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from rollout.core.episodes import EvalOutput, Signal
from rollout.core.errors import RewardInvalidError
from rollout.core.types import VerifyResult

_WHOLE = ("reward", "score", "passed")
"""Keys that can be the reward of a map, the first that is there wins."""
_BESIDES = frozenset({"is_correct", "signals", "metadata"})


def coerce(value: Any, who: str = "the verifier") -> VerifyResult:
    """What a Python verifier or a reward function returned, as a verdict.

    Raises:
        RewardInvalidError: it is none; the text says what it is.
    """
    if isinstance(value, VerifyResult):
        return value
    if isinstance(value, EvalOutput):
        said = {"is_correct": value.is_correct} if value.is_correct is not None else {}
        return _from_map({"reward": value.reward, **said, "signals": value.signals, "metadata": value.metadata}, who)
    if isinstance(value, Mapping):
        return _from_map(value, who)
    if isinstance(value, tuple):
        if len(value) != 2 or not _is_boolean(value[1]):
            raise RewardInvalidError(f"{who} returned a tuple of {len(value)}; it must be (reward, is_correct)")
        return VerifyResult(rewards={"reward": _number(value[0], who), "is_correct": float(bool(value[1]))})
    return VerifyResult(rewards={"reward": _number(value, who)})


def eval_output(result: VerifyResult) -> EvalOutput:
    """The verdict as spec 2's type: correct means what it says of itself, else a reward of 1 or more.

    Raises:
        RewardInvalidError: the verdict has several rewards and none is called `reward`.
    """
    reward = result.reward
    if reward is None:
        raise RewardInvalidError(f"there is no reward called `reward` among {', '.join(result.rewards)}")
    said = result.rewards.get("is_correct")
    signals = [Signal(name, value) for name, value in result.rewards.items() if name not in ("reward", "is_correct")]
    return EvalOutput(reward, reward >= 1.0 if said is None else bool(said), signals, dict(result.details))


def _from_map(value: Mapping[str, Any], who: str) -> VerifyResult:
    if not value:
        raise RewardInvalidError(f"{who} returned an empty map; it must hold at least one number")
    rewards: dict[str, float] = {}
    whole = next((key for key in _WHOLE if key in value), None)
    if whole is not None:
        rewards["reward"] = _number(value[whole], f"{who}: `{whole}`")
    elif value.keys() & {"signals", "metadata"}:
        raise RewardInvalidError(f"{who} returned a map without `reward`; it has {', '.join(map(str, value))}")
    if "is_correct" in value:
        if not _is_boolean(value["is_correct"]):
            raise RewardInvalidError(f"{who}: `is_correct` is {_shown(value['is_correct'])}; it must be True or False")
        rewards["is_correct"] = float(bool(value["is_correct"]))
    for name, number in _signals(value.get("signals"), who):
        rewards.setdefault(name, _number(number, f"{who}: signal `{name}`"))
    for key, number in value.items():
        if key != whole and key not in _BESIDES:
            rewards.setdefault(str(key), _number(number, f"{who}: `{key}`"))
    return VerifyResult(rewards=rewards, details=_plain(value.get("metadata"), who))


def _signals(value: Any, who: str) -> list[tuple[str, Any]]:
    if value is None:
        return []
    if isinstance(value, Mapping):
        return [(str(name), number) for name, number in value.items()]
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        pairs = [_signal(item) for item in value]
        if None not in pairs:
            return [pair for pair in pairs if pair is not None]
    raise RewardInvalidError(f"{who}: `signals` is {_shown(value)}; it must be a map of numbers, or a list of signals")


def _signal(item: Any) -> tuple[str, Any] | None:
    if isinstance(item, Signal):
        return item.name, item.value
    if isinstance(item, Mapping) and isinstance(item.get("name"), str):
        return item["name"], item.get("value")
    return None


def _plain(value: Any, who: str) -> dict[str, Any]:
    """The metadata as JSON; what is none of it becomes its text."""
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise RewardInvalidError(f"{who}: `metadata` is {_shown(value)}; it must be a map")
    plain = msgspec.to_builtins({str(key): item for key, item in value.items()}, str_keys=True, enc_hook=_as_text)
    details: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(plain))
    return details


def _as_text(value: Any) -> Any:
    return value.item() if hasattr(value, "item") and callable(value.item) else str(value)


def _number(value: Any, who: str) -> float:
    if isinstance(value, bool):
        return float(value)
    if isinstance(value, str):
        if len(value) > 100 or "_" in value:
            raise RewardInvalidError(f"{who} is {_shown(value)}, which is not a number")
        value = value.strip()
    elif not isinstance(value, int | float) and not _is_scalar(value):
        raise RewardInvalidError(f"{who} is {_shown(value)}, which is not a number")
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise RewardInvalidError(f"{who} is {_shown(value)}, which is not a number") from error
    if not math.isfinite(number):
        raise RewardInvalidError(f"{who} is {number}, which is not a finite number")
    return number


def _is_scalar(value: Any) -> bool:
    """A number of numpy and the like: no array of several."""
    return hasattr(type(value), "__float__") and getattr(value, "size", 1) == 1


def _is_boolean(value: Any) -> bool:
    return isinstance(value, bool) or type(value).__name__ in ("bool_", "bool")


def _shown(value: Any) -> str:
    text = value if isinstance(value, str) else repr(value)
    kind = type(value).__name__
    return f"{kind} {text[:57]!r}..." if len(text) > 60 else (repr(text) if isinstance(value, str) else f"{kind} {text}")
