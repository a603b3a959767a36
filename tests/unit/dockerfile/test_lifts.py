"""What is lifted from a Dockerfile: the image below the last stage, and the working directory."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollout.core.dockerfile import lifted, parse
from rollout.core.errors import TaskError

PATH = Path("/task/environment/Dockerfile")


@pytest.mark.parametrize(
    ("text", "image", "workdir"),
    [
        ("FROM base:9\nWORKDIR /df\n", "base:9", "/df"),
        ("FROM base:9\n", "base:9", None),
        ("FROM --platform=linux/amd64 x\n", "x", None),
        ("FROM golang:1 AS build\nWORKDIR /go\nFROM alpine\n", "alpine", None),
        ("FROM python:3 AS build\nWORKDIR /src\nFROM build\nWORKDIR app\n", "python:3", "/src/app"),
        ("FROM a AS Build\nFROM build\n", "a", None),
        ("FROM a AS x\nFROM b AS x\nFROM x\n", "b", None),
        ("FROM x AS x\nFROM x\n", "x", None),
        ("ARG TAG=3.11\nFROM python:${TAG}-slim\n", "python:3.11-slim", None),
        ("ARG IMAGE\nFROM $IMAGE\n", None, None),
        ("FROM x\nWORKDIR app\n", "x", None),
        ("FROM scratch\nWORKDIR app\n", "scratch", "/app"),
        ("FROM x\nWORKDIR /a\nWORKDIR b\nWORKDIR ../c\n", "x", "/a/c"),
        ('FROM x\nWORKDIR "/a b"\n', "x", "/a b"),
        ("FROM x\nENV HOME=/h\nWORKDIR $HOME/w\n", "x", "/h/w"),
        ("FROM x\nENV HOME /h\nWORKDIR ${HOME}\n", "x", "/h"),
        ("ARG D=/d\nFROM x\nARG D\nWORKDIR $D\n", "x", "/d"),
        ("ARG D=/d\nFROM x\nWORKDIR /a$D\n", "x", "/a"),
        ("FROM x\nRUN cat <<EOF\nWORKDIR /no\nFROM no\nEOF\n", "x", None),
        ("FROM x\nRUN a && \\\n# WORKDIR /no\n  b\nworkdir /yes\n", "x", "/yes"),
    ],
)
def test_image_and_working_directory(text: str, image: str | None, workdir: str | None) -> None:
    assert lifted(parse(text, PATH)) == (image, workdir)


@pytest.mark.parametrize("text", ["FROM ${a\n", "FROM x\nWORKDIR '/a\n", "ARG A=${\nFROM x\n"])
def test_a_broken_expression_names_its_line(text: str) -> None:
    with pytest.raises(TaskError, match=rf"{PATH}:\d+: "):
        lifted(parse(text, PATH))


@pytest.mark.parametrize("text", ["FROM a b\nRUN x\n", "FROM a AS\n"])
def test_a_from_that_docker_refuses_is_an_error(text: str) -> None:
    with pytest.raises(TaskError, match=":1: FROM takes an image"):
        parse(text, PATH)


_lines = st.lists(
    st.one_of(
        st.text(max_size=30),
        st.sampled_from(
            ["FROM x", "FROM x AS a", "FROM a AS x", "WORKDIR /a", "WORKDIR b$A", "ENV A=${B:-c}", "ARG A='1", "ARG B=2"]
        ),
    ),
    max_size=12,
)


@given(lines=_lines)
def test_any_text_is_lifted_from_or_a_task_error(lines: list[str]) -> None:
    try:
        found = lifted(parse("\n".join(lines), PATH))
    except TaskError as error:
        assert str(PATH) in str(error)
    else:
        assert found.workdir is None or found.workdir.startswith("/")
