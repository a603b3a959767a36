"""What hosts, host files and ssh configurations mean."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollout.core.errors import ConfigError
from rollout_ssh.address import Endpoint, find_hosts, parse_host, read_ssh_config, resolve
from rollout_ssh.options import SshOptions


def endpoint(tmp_path: Path, text: str, config: str) -> Endpoint:
    (tmp_path / "config").write_text(config)
    return resolve(parse_host(text, "here"), read_ssh_config(tmp_path / "config"))


@pytest.mark.parametrize(
    ("text", "user", "host", "port", "slots"),
    [
        ("lab1", None, "lab1", None, None),
        ("alice@lab1", "alice", "lab1", None, None),
        ("alice@10.0.0.1:2222", "alice", "10.0.0.1", 2222, None),
        ("lab1:22 slots=8", None, "lab1", 22, 8),
        ("root@[fe80::1]:22", "root", "fe80::1", 22, None),
    ],
)
def test_a_host_is_written_as_for_ssh(text: str, user: str | None, host: str, port: int | None, slots: int | None) -> None:
    entry = parse_host(text, "here")
    assert (entry.user, entry.host, entry.port, entry.slots) == (user, host, port, slots)


@pytest.mark.parametrize(
    "text", ["", "a b", "a:", "a:0", "a:65536", "a slots=0", "a slots=x", "a@", "ssh://a", "a slots=2 b", "fe80::1"]
)
def test_what_is_no_host_is_refused_with_its_place(text: str) -> None:
    with pytest.raises(ConfigError, match=r"hosts\[3\]"):
        parse_host(text, "hosts[3]")


@given(st.text(max_size=60))
def test_any_text_is_a_host_or_an_error_in_words(text: str) -> None:
    try:
        entry = parse_host(text, "here")
    except ConfigError as error:
        assert str(error).startswith("here: ")
    else:
        assert entry.host and not set(entry.host) & set(" \t\n@/")


def test_a_host_file_has_comments_and_says_the_line_of_a_fault(tmp_path: Path) -> None:
    file = tmp_path / "hosts"
    file.write_text("# ours\nlab1 slots=2  # the old one\n\nbob@lab2:22\n")
    assert [(entry.text, entry.slots) for entry in find_hosts(["lab0"], file)] == [
        ("lab0", None),
        ("lab1", 2),
        ("bob@lab2:22", None),
    ]
    file.write_text("lab1\na b c\n")
    with pytest.raises(ConfigError, match=rf"{file}:2: "):
        find_hosts([], file)
    file.write_text("# none\n")
    with pytest.raises(ConfigError, match="names no host"):
        find_hosts([], file)


def test_the_configuration_fills_in_what_the_host_does_not_say(tmp_path: Path) -> None:
    text = "Host lab\n  HostName 10.0.0.9\n  User bob\n  Port 2222\n  IdentityFile /keys/lab\n  HostKeyAlias the-lab\n"
    found = endpoint(tmp_path, "lab", text)
    assert (found.address, found.keys, found.key_alias, found.hops) == ("bob@10.0.0.9:2222", ("/keys/lab",), "the-lab", ())
    assert endpoint(tmp_path, "alice@lab:22", text).address == "alice@10.0.0.9:22"


def test_jumps_are_resolved_in_order_and_with_their_own_configuration(tmp_path: Path) -> None:
    text = "Host lab\n  ProxyJump gate,root@inner:2200\n  User u\n"
    text += "Host gate\n  HostName gate.example\n  User g\n  Port 22\nHost inner\n  User x\n"
    assert [hop.address for hop in endpoint(tmp_path, "lab", text).hops] == ["g@gate.example:22", "root@inner:2200"]


def test_a_jump_over_a_machine_that_needs_one_itself(tmp_path: Path) -> None:
    text = "Host *\n  User u\nHost lab\n  ProxyJump second\nHost second\n  ProxyJump first\n"
    assert [hop.name for hop in endpoint(tmp_path, "lab", text).hops] == ["first", "second"]


def test_jumps_in_a_circle_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="circle"):
        endpoint(tmp_path, "a", "Host a\n  ProxyJump b\nHost b\n  ProxyJump a\n")


def test_a_jump_goes_before_a_proxy_command(tmp_path: Path) -> None:
    found = endpoint(tmp_path, "a", "Host a\n  ProxyCommand nc %h %p\n  ProxyJump none\n")
    assert (found.command, found.hops) == ("nc a 22", ())


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"hosts": ["a"], "slots": 0},
        {"hosts": ["a"], "pids": 0},
        {"hosts": ["a"], "mode": "vm"},
        {"hosts": ["a"], "share": ["relative"]},
        {"hosts": ["a"], "folder": "relative"},
        {"hosts": ["a"], "lost_after_sec": 0},
        {"hosts": ["a"], "unknown_hosts": "accept"},
        {"hosts": ["a"], "engine": {"pull": "never"}},
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(options, SshOptions)
