"""Images are made once, ahead of the trials that need them but never far, and each trial hears of its own failure."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from rollout.core.errors import BuildError, ImagePullError
from rollout.core.trial.images import Images
from rollout.core.trial.redact import Redactor
from rollout.core.types import EnvironmentSpec, OutputSink


class Builder:
    """The part of a backend that images need."""

    def __init__(self) -> None:
        self.began: list[str] = []
        self.removed: list[str] = []
        self.now = self.most = 0
        self.go = asyncio.Event()
        self.fails: dict[str, Exception] = {}

    async def prepare(self, spec: EnvironmentSpec, *, force: bool = False, sink: OutputSink | None = None) -> str:
        self.began.append(spec.digest)
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            await self.go.wait()
        finally:
            self.now -= 1
        if (error := self.fails.get(spec.digest)) is not None:
            raise error
        return f"image-{spec.digest}"

    async def remove(self, image: str) -> None:
        self.removed.append(image)


def environment(number: int) -> EnvironmentSpec:
    return EnvironmentSpec(task_name=f"t{number}", directory=None, digest=str(number))


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


NewImages = Callable[..., Images]


@pytest.fixture
def new_images(tmp_path: Path) -> NewImages:
    def make(builder: Builder, count: int, at_once: int = 2) -> Images:
        users = Counter({str(number): 1 for number in range(count)})
        return Images(
            cast(Any, builder), force=False, delete=True, logs=tmp_path, redactor=Redactor({}), users=users, at_once=at_once
        )

    return make


async def test_the_next_images_are_made_while_nobody_asks_and_no_more_than_a_few(new_images: NewImages) -> None:
    builder = Builder()
    builder.go.set()
    images = new_images(builder, 10_000)
    ahead = asyncio.ensure_future(images.prepare_ahead((environment(number), 60.0) for number in range(10_000)))
    await settle()
    assert builder.began == ["0", "1", "2", "3"]
    assert await images.prepare(environment(0), 60.0) == "image-0"
    await settle()
    assert builder.began == ["0", "1", "2", "3", "4"]
    assert len(asyncio.all_tasks()) < 10
    for number in range(1, 10_000):
        await images.prepare(environment(number), 60.0)
    await ahead
    assert Counter(builder.began) == Counter(str(number) for number in range(10_000))
    assert builder.most <= 2


async def test_builds_have_a_limit_of_their_own(new_images: NewImages) -> None:
    builder = Builder()
    images = new_images(builder, 20, at_once=3)
    asked = [asyncio.ensure_future(images.prepare(environment(number), 60.0)) for number in range(10)]
    ahead = asyncio.ensure_future(images.prepare_ahead((environment(number), 60.0) for number in range(20)))
    await settle()
    assert builder.now == 3
    builder.go.set()
    await asyncio.gather(*asked)
    await settle()
    assert builder.most == 3
    assert len(builder.began) == 14
    ahead.cancel()
    await asyncio.wait([ahead])


async def test_a_failure_ahead_is_each_trials_own_and_a_passing_one_is_tried_again(new_images: NewImages) -> None:
    builder = Builder()
    builder.go.set()
    builder.fails = {"0": BuildError("step 2 failed"), "1": ImagePullError("no answer")}
    images = new_images(builder, 2)
    await images.prepare_ahead((environment(number), 60.0) for number in range(2))
    for _ in range(2):
        with pytest.raises(BuildError, match="step 2 failed"):
            await images.prepare(environment(0), 60.0)
    with pytest.raises(ImagePullError):
        await images.prepare(environment(1), 60.0)
    builder.fails.clear()
    assert await images.prepare(environment(1), 60.0) == "image-1"
    assert builder.began == ["0", "1", "1"]


async def test_ending_the_work_ahead_ends_the_builds_that_nobody_waits_for(new_images: NewImages) -> None:
    builder = Builder()
    images = new_images(builder, 2)
    ahead = asyncio.ensure_future(images.prepare_ahead((environment(number), 60.0) for number in range(2)))
    await settle()
    waiting = asyncio.ensure_future(images.prepare(environment(1), 60.0))
    await settle()
    assert builder.now == 2
    ahead.cancel()
    await asyncio.wait([ahead])
    assert builder.now == 1
    builder.go.set()
    assert await waiting == "image-1"


async def test_what_was_made_for_trials_that_ended_before_is_removed(new_images: NewImages) -> None:
    builder = Builder()
    images = new_images(builder, 1)
    ahead = asyncio.ensure_future(images.prepare_ahead([(environment(0), 60.0)]))
    await settle()
    assert images.release("0") is None
    builder.go.set()
    await ahead
    assert builder.removed == ["image-0"]
