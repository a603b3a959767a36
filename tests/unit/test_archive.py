"""Archives in both directions, and what an enemy may put into one."""

from __future__ import annotations

import io
import os
import stat
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rollout.core.archive import pack, unpack
from rollout.core.errors import TransferError
from rollout.core.sandbox.inside import transfer
from rollout.core.types import TransferLimits, TransferReport

names = st.text(st.characters(blacklist_characters="/\0", blacklist_categories=["Cs"]), min_size=1, max_size=60).filter(
    lambda name: name not in (".", "..") and len(name.encode()) <= 255
)
trees: st.SearchStrategy[Any] = st.recursive(
    st.binary(max_size=2000), lambda children: st.dictionaries(names, children, max_size=5), max_leaves=20
)
sharing_folder = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60)


def packed(source: Path, **fields: Any) -> bytes:
    out = io.BytesIO()
    pack(source, out, **fields)
    return out.getvalue()


def packed_inside(source: Path, max_file_bytes: int = 1 << 30, max_files: int = 1000) -> bytes:
    """As a sandbox packs what is downloaded from it."""
    out = io.BytesIO()
    transfer.pack(os.fsencode(source), out, max_file_bytes, max_files)
    return out.getvalue()


def unpacked(data: bytes, target: Path, **limits: int) -> TransferReport:
    return unpack(io.BytesIO(data), target, TransferLimits(**limits))


def tar(*members: tuple[str, dict[str, Any]], format: int = tarfile.GNU_FORMAT) -> bytes:
    """An archive of `(name, fields of TarInfo and data)`."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=format) as archive:
        for name, fields in members:
            member = tarfile.TarInfo(name)
            data = fields.pop("data", b"")
            for key, value in fields.items():
                setattr(member, key, value)
            member.size = fields.get("size", len(data))
            archive.addfile(member, io.BytesIO(data))
    return out.getvalue()


def write_tree(tree: Any, path: Path) -> None:
    if isinstance(tree, bytes):
        path.write_bytes(tree)
        return
    path.mkdir()
    for name, child in tree.items():
        write_tree(child, path / name)


def read_tree(path: Path) -> Any:
    if path.is_dir():
        return {child.name: read_tree(child) for child in path.iterdir()}
    return path.read_bytes()


@pytest.mark.parametrize("packer", [packed, packed_inside], ids=["host", "sandbox"])
@sharing_folder
@given(tree=trees)
def test_a_tree_comes_back_as_it_was(
    packer: Callable[[Path], bytes], tree: Any, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("tree")
    write_tree(tree, folder / "in")
    report = unpacked(packer(folder / "in"), folder / "out")
    assert read_tree(folder / "out") == tree
    assert report.skipped_count == 0


@pytest.mark.parametrize("packer", [packed, packed_inside], ids=["host", "sandbox"])
@sharing_folder
@given(tree=trees)
def test_other_readers_of_tar_understand_what_is_written(
    packer: Callable[[Path], bytes], tree: Any, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("tree")
    write_tree(tree, folder / "in")
    with tarfile.open(fileobj=io.BytesIO(packer(folder / "in"))) as archive:
        files = {member.name: archive.extractfile(member).read() for member in archive if member.isfile()}  # type: ignore[union-attr]
    expected = {
        os.path.normpath(f"r/{path.relative_to(folder / 'in')}"): path.read_bytes()
        for path in [folder / "in", *(folder / "in").rglob("*")]
        if path.is_file()
    }
    assert files == expected


@sharing_folder
@given(tree=trees)
def test_a_sandbox_reads_what_the_host_writes(tree: Any, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("tree")
    write_tree(tree, folder / "in")
    transfer.unpack(io.BytesIO(packed(folder / "in")), os.fsencode(folder / "out"), os.geteuid(), os.getegid())
    assert read_tree(folder / "out") == tree


@pytest.mark.parametrize("format", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_all_formats_are_read(format: int, tmp_path: Path) -> None:
    long = "folder/" + "/".join(["part" * 10] * 3) + "/file"
    data = tar(("folder", {"type": tarfile.DIRTYPE}), (long, {"data": b"content"}), format=format)
    assert unpacked(data, tmp_path / "out").files == 1
    assert (tmp_path / "out" / long.partition("/")[2]).read_bytes() == b"content"


@pytest.mark.parametrize("format", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_names_that_are_not_text_are_kept(format: int, tmp_path: Path) -> None:
    name = os.fsdecode(b"r/latin-\xe9")
    unpacked(tar(("r", {"type": tarfile.DIRTYPE}), (name, {"data": b"x"}), format=format), tmp_path / "out")
    assert os.listdir(os.fsencode(tmp_path / "out")) == [b"latin-\xe9"]


@pytest.mark.parametrize(
    "name",
    ["/etc/passwd", "r/../escaped", "../escaped", "r/a/../../../escaped", "r/" + "x" * 300, "r/" + "/".join(["y" * 200] * 30)],
)
def test_names_that_lead_out_or_cannot_be_are_left_out(name: str, tmp_path: Path) -> None:
    data = tar(("r", {"type": tarfile.DIRTYPE}), (name, {"data": b"evil"}), ("r/fine", {"data": b"fine"}))
    report = unpacked(data, tmp_path / "deep" / "out")
    assert report.skipped_count == 1
    assert [path.name for path in (tmp_path / "deep" / "out").rglob("*") if path.is_file()] == ["fine"]
    assert sorted(path.name for path in tmp_path.rglob("*") if path.is_file()) == ["fine"]


@pytest.mark.parametrize(
    "target",
    ["/etc", "..", "../..", "a/../..", "../out/../..", "here/../..", "", "a/b/../../../x"],
    ids=lambda target: target or "empty",
)
def test_links_that_lead_out_are_left_out(target: str, tmp_path: Path) -> None:
    members = [("r", {"type": tarfile.DIRTYPE}), ("r/link", {"type": tarfile.SYMTYPE, "linkname": target})]
    report = unpacked(tar(*members, ("r/link/file", {"data": b"through"})), tmp_path / "deep" / "out")
    assert report.skipped_count >= 1
    assert not os.path.islink(tmp_path / "deep" / "out" / "link")
    assert [path for path in tmp_path.rglob("file") if "out" not in path.parts] == []


@pytest.mark.parametrize("target", ["file", "./file", "sub/file", "sub", "."])
def test_links_that_stay_inside_are_kept(target: str, tmp_path: Path) -> None:
    data = tar(("r", {"type": tarfile.DIRTYPE}), ("r/link", {"type": tarfile.SYMTYPE, "linkname": target}))
    assert unpacked(data, tmp_path / "out").skipped_count == 0
    assert os.readlink(tmp_path / "out" / "link") == target


def test_a_link_up_from_a_folder_below_is_kept(tmp_path: Path) -> None:
    data = tar(("r/a/b/link", {"type": tarfile.SYMTYPE, "linkname": "../../file"}), ("r/file", {"data": b"x"}))
    assert unpacked(data, tmp_path / "out").skipped_count == 0
    assert (tmp_path / "out" / "a" / "b" / "link").read_bytes() == b"x"


def test_nothing_is_written_through_a_link_of_the_same_archive(tmp_path: Path) -> None:
    members = [("r/sub", {"type": tarfile.DIRTYPE}), ("r/link", {"type": tarfile.SYMTYPE, "linkname": "sub"})]
    report = unpacked(tar(*members, ("r/link/file", {"data": b"x"})), tmp_path / "out")
    assert report.skipped == (("link/file", "a link or a file is in the way"),)
    assert list((tmp_path / "out" / "sub").iterdir()) == []


@pytest.mark.parametrize("kind", [tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE])
def test_devices_and_fifos_are_left_out(kind: bytes, tmp_path: Path) -> None:
    report = unpacked(
        tar(("r", {"type": tarfile.DIRTYPE}), ("r/device", {"type": kind, "devmajor": 1, "devminor": 3})), tmp_path / "out"
    )
    assert [name for name, _ in report.skipped] == ["device"]
    assert list((tmp_path / "out").iterdir()) == []


def test_hard_links_within_are_kept_and_others_are_not(tmp_path: Path) -> None:
    (tmp_path / "host").write_text("host")
    link = {"type": tarfile.LNKTYPE}
    members = [("r/sub/file", {"data": b"x"}), ("r/same", {**link, "linkname": "r/sub/file"})]
    for number, target in enumerate(["r/missing", "/etc/passwd", f"r/../../{tmp_path.name}/host", "../host", "r/sub", "r"]):
        members.append((f"r/bad{number}", {**link, "linkname": target}))
    report = unpacked(tar(*members), tmp_path / "out")
    assert (tmp_path / "out" / "same").samefile(tmp_path / "out" / "sub" / "file")
    assert report.skipped_count == 6
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["same", "sub"]


def test_modes_are_reduced_to_the_users_own(tmp_path: Path) -> None:
    data = tar(("r", {"type": tarfile.DIRTYPE, "mode": 0}), ("r/suid", {"mode": 0o6777}), ("r/closed", {"mode": 0}))
    unpacked(data, tmp_path / "out")
    assert stat.S_IMODE((tmp_path / "out" / "suid").stat().st_mode) == 0o700
    assert stat.S_IMODE((tmp_path / "out" / "closed").stat().st_mode) == 0o600


def test_limits_leave_out_and_report(tmp_path: Path) -> None:
    data = tar(*((f"r/{number}", {"data": bytes(100 * number)}) for number in range(1, 6)))
    report = unpacked(data, tmp_path / "a", max_file_bytes=300)
    assert (report.files, [name for name, _ in report.skipped]) == (3, ["4", "5"])
    report = unpacked(data, tmp_path / "b", max_total_bytes=700)
    assert (report.files, report.total_bytes) == (3, 600)
    report = unpacked(data, tmp_path / "c", max_files=2)
    assert (report.files, report.skipped_count) == (2, 1)


def test_a_sandbox_says_what_it_leaves_out_without_sending_it(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    with (tmp_path / "in" / "sparse").open("wb") as file:
        file.truncate(1 << 40)
    os.mkfifo(tmp_path / "in" / "fifo")
    data = packed_inside(tmp_path / "in")
    assert len(data) < 10_000
    assert sorted(unpacked(data, tmp_path / "out").skipped) == [
        ("fifo", "a device, FIFO or socket"),
        ("sparse", f"larger than {1 << 30} bytes"),
    ]


def test_a_sparse_file_in_the_archive_is_left_out(tmp_path: Path) -> None:
    block = bytearray(tar(("r/sparse", {"data": b"x" * 512}))[:512])
    block[156:157] = b"S"
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    data = bytes(block) + b"x" * 512 + tar(("r/fine", {"data": b"y"}))
    report = unpacked(data, tmp_path / "out")
    assert ([name for name, _ in report.skipped], report.files) == (["sparse"], 1)


def test_a_header_that_promises_gigabytes_is_refused(tmp_path: Path) -> None:
    block = bytearray(tar(("././@PaxHeader", {"type": tarfile.XHDTYPE}))[:512])
    block[124:136] = b"%011o\0" % (4 << 30)
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    with pytest.raises(TransferError, match="a header of 4294967296 bytes"):
        unpacked(bytes(block), tmp_path / "out")


@pytest.mark.parametrize(
    "data", [b"", b"not a tar" * 100, b"\x1f\x8b" + bytes(600), b"x"], ids=["empty", "text", "gzip", "short"]
)
def test_what_is_not_an_archive_is_an_error(data: bytes, tmp_path: Path) -> None:
    with pytest.raises(TransferError):
        unpacked(data, tmp_path / "out")


@pytest.mark.parametrize("cut", [100, 600, 1100, 1500])
def test_an_archive_that_ends_early_is_an_error(cut: int, tmp_path: Path) -> None:
    data = tar(("r", {"type": tarfile.DIRTYPE}), ("r/file", {"data": b"x" * 700}))
    with pytest.raises(TransferError):
        unpacked(data[:cut], tmp_path / "out")


@sharing_folder
@given(data=st.binary(max_size=3000))
def test_any_bytes_end_in_a_report_or_a_transfer_error(data: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("fuzz")
    try:
        unpacked(data, folder / "out")
    except TransferError:
        pass
    assert {path.name for path in folder.iterdir()} <= {"out"}


_headers = st.builds(
    dict,
    name=st.one_of(names, st.sampled_from(["r", "r/a", "r/../x", "/x", "", "r/a/b", "..", "r//a", "r/./a"])),
    type=st.sampled_from([b"0", b"1", b"2", b"3", b"5", b"6", b"7", b"L", b"K", b"x", b"g", b"S", b"\0"]),
    linkname=st.sampled_from(["", "r/a", "a", "../x", "/etc", "a/.."]),
    data=st.binary(max_size=600),
)


@sharing_folder
@given(members=st.lists(_headers, max_size=8))
def test_any_well_formed_headers_keep_within_the_target(
    members: list[dict[str, Any]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("fuzz")
    out = io.BytesIO()
    for fields in members:
        member = tarfile.TarInfo(fields["name"][:90])
        member.type, member.linkname, member.size = fields["type"], fields["linkname"], len(fields["data"])
        out.write(member.tobuf(tarfile.GNU_FORMAT)[:512])
        out.write(fields["data"] + bytes(-len(fields["data"]) % 512))
    try:
        unpacked(out.getvalue() + bytes(1024), folder / "out")
    except TransferError:
        pass
    assert {path.name for path in folder.iterdir()} <= {"out"}
    for path in (folder / "out").rglob("*"):
        assert Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder / "out"))


def test_pack_replaces_modes_and_owners_and_leaves_out(tmp_path: Path) -> None:
    (tmp_path / "in" / "sub").mkdir(parents=True)
    for name in ("kept", "left", "sub/kept", "sub/left"):
        (tmp_path / "in" / name).touch()
    data = packed(tmp_path / "in", name="app/x", owner=(7, 2**22), mode=0o640, keep=lambda path: "left" not in path)
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        members = archive.getmembers()
    assert [member.name for member in members] == ["app/x", "app/x/kept", "app/x/sub", "app/x/sub/kept"]
    assert {(member.uid, member.gid, member.mode) for member in members} == {(7, 2**22, 0o640)}


def test_pack_of_something_missing_names_it(tmp_path: Path) -> None:
    with pytest.raises(TransferError, match="missing: No such file"):
        packed(tmp_path / "missing")
