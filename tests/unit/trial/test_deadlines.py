"""Effective timeouts: the eleven golden rows of the Go program's TestComputeVerifierTimeout, and fractions."""

import asyncio

import pytest

from rollout.core.errors import VerifierTimeoutError
from rollout.core.trial.deadlines import deadline, effective_timeout


@pytest.mark.parametrize(
    ("task", "multiplier", "override", "ceiling", "expected"),
    [
        (100, 1, 0, 0, 100),
        (100, 2, 0, 0, 200),
        (100, 1, 50, 0, 50),
        (100, 2, 50, 0, 100),
        (100, 1, 0, 60, 60),
        (100, 2, 0, 150, 200),
        (200, 2, 0, 150, 300),
        (100, 1, 50, 100, 50),
        (100, 1, 200, 100, 100),
        (100, 1, 0, 0, 100),
        (100, 1, 0, 0, 100),
        (0.5, 1, 0, 0, 0.5),
        (0.5, 1.5, 0, 0.25, 0.375),
    ],
)
def test_effective_timeout(task: float, multiplier: float, override: float, ceiling: float, expected: float) -> None:
    assert effective_timeout(task, override_sec=override, max_sec=ceiling, multiplier=multiplier) == expected


async def test_a_fraction_of_a_second_is_a_deadline() -> None:
    with pytest.raises(VerifierTimeoutError, match=r"the verifier was still running after 0\.02 s"):
        async with deadline(0.02, VerifierTimeoutError, "the verifier"):
            await asyncio.sleep(30)


async def test_a_timeout_of_the_block_itself_is_not_the_deadline() -> None:
    with pytest.raises(TimeoutError) as caught:
        async with deadline(30, VerifierTimeoutError, "the verifier"):
            raise TimeoutError("its own")
    assert not isinstance(caught.value, VerifierTimeoutError)


async def test_no_deadline_is_no_limit() -> None:
    async with deadline(None, VerifierTimeoutError, "the verifier"):
        await asyncio.sleep(0)
