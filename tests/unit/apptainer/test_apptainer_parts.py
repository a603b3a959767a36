"""Parts of `type: apptainer` that need no Apptainer: SIF files, names of images, options, complaints, GPUs."""

from __future__ import annotations

import asyncio
import struct
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollout.core.errors import SandboxError, TaskError
from rollout_apptainer import gpus, program, sif
from rollout_apptainer.options import ApptainerOptions
from rollout_apptainer.sources import Finder, staged_names


def sif_bytes(config: bytes = b"", *, system: bytes = b"squashfs", name: bytes = b"oci-config.json") -> bytes:
    """A SIF file with a file system and an object of JSON, as the format's description has it."""
    header, entry = struct.Struct("<32s10s3s3s16s8q"), struct.Struct("<i?III7q128s384s")
    start = header.size + 2 * entry.size
    entries = entry.pack(0x4004, True, 1, 1, 0, start, len(system), len(system), 0, 0, 0, 0, b"fs", b"")
    entries += entry.pack(0x4006, True, 2, 1, 0, start + len(system), len(config), len(config), 0, 0, 0, 0, name, b"")
    head = header.pack(b"#!run\n", b"SIF_MAGIC\0", b"01\0", b"02\0", bytes(16), 0, 0, 0, 2, header.size, len(entries), start, 0)
    return head + entries + system + config


def test_a_whole_file_tells_what_its_image_says(tmp_path: Path) -> None:
    path = tmp_path / "x.sif"
    path.write_bytes(sif_bytes(b'{"Env":["A=1","B=x=y"],"User":"daemon","WorkingDir":"/srv"}'))
    found = sif.read(path)
    assert found.config is not None
    assert (found.config.env, found.config.user, found.config.workdir) == ({"A": "1", "B": "x=y"}, "daemon", "/srv")
    path.write_bytes(sif_bytes(sif.config_as_oci(found.config)))
    assert sif.read(path).config == found.config


@given(st.integers(min_value=0, max_value=len(sif_bytes()) - 1))
def test_a_file_that_is_cut_off_anywhere_is_not_whole(tmp_path_factory: pytest.TempPathFactory, size: int) -> None:
    path = tmp_path_factory.mktemp("sif") / "x.sif"
    path.write_bytes(sif_bytes()[:size])
    with pytest.raises(sif.NotSifError):
        sif.read(path)


@given(st.binary(max_size=400), st.binary(max_size=100))
def test_foreign_bytes_are_an_answer_and_never_a_crash(
    tmp_path_factory: pytest.TempPathFactory, tail: bytes, config: bytes
) -> None:
    path = tmp_path_factory.mktemp("sif") / "x.sif"
    for content in (sif_bytes()[:42] + tail, sif_bytes(config)):
        path.write_bytes(content)
        try:
            sif.read(path)
        except sif.NotSifError:
            continue


@pytest.mark.parametrize(
    ("name", "files"),
    [
        ("debian", ["debian_latest.sif"]),
        ("debian:trixie-slim", ["debian_trixie-slim.sif"]),
        ("ghcr.io/lab/tools:2", ["ghcr.io_lab_tools_2.sif", "tools_2.sif"]),
        ("localhost:5000/x", ["localhost_5000_x_latest.sif", "x_latest.sif"]),
        ("debian@sha256:ab", ["debian_sha256_ab.sif"]),
    ],
)
def test_a_fetched_image_is_found_under_the_name_that_pulling_gives_it(name: str, files: list[str]) -> None:
    assert staged_names(name) == files


def test_a_name_stands_for_what_the_job_says(tmp_path: Path) -> None:
    (tmp_path / "mine.sif").touch()
    finder = Finder(ApptainerOptions(bases={"python:3.12": "mine.sif"}), tmp_path, offline=False)
    assert finder.image("python:3.12", "task", tmp_path).reference == str(tmp_path / "mine.sif")
    assert finder.image("docker.io/library/python:3.12", "task", tmp_path).reference == str(tmp_path / "mine.sif")
    assert finder.image("alpine:3", "task", tmp_path).reference == "docker://alpine:3"
    with pytest.raises(TaskError, match="offline"):
        Finder(ApptainerOptions(), tmp_path, offline=True).image("alpine:3", "task", tmp_path)
    with pytest.raises(TaskError, match="not the name of an image"):
        finder.image("alpine; rm -rf", "task", tmp_path)


@pytest.mark.parametrize("wrong", [{"pids": 0}, {"mounts": ["relative:/x"]}, {"image": "--nv"}, {"disk": "floppy"}, {"oops": 1}])
def test_options_that_mean_nothing_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(wrong, ApptainerOptions)


def test_a_command_that_is_not_there_is_named_with_what_to_do() -> None:
    with pytest.raises(SandboxError, match=r"there is no command no-such-program.*module load"):
        program.find("no-such-program")


def test_a_complaint_is_one_line_without_chatter() -> None:
    text = "\x1b[34mINFO:    working\x1b[0m\nWARNING: odd\n\x1b[31mFATAL:   it is\n broken\n"
    assert program.complaint(text) == "FATAL: it is"


async def test_gpus_are_lent_to_one_trial_at_a_time() -> None:
    pool = gpus.Gpus("nv", ["0", "1"])
    first = await pool.lend(2)
    waiting = asyncio.ensure_future(pool.lend(1))
    await asyncio.sleep(0)
    assert not waiting.done()
    await pool.give_back(first)
    assert pool.variables(await waiting)["CUDA_VISIBLE_DEVICES"] == "0"
