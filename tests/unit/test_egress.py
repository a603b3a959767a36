"""Which hosts a list allows, and what the first bytes of a connection say of whom it is for."""

from __future__ import annotations

import asyncio
import socket
import ssl

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollout.core.egress.hello import answer, host_of, name_asked
from rollout.core.egress.relay import Relay
from rollout.core.egress.rules import Rules


@pytest.mark.parametrize(
    ("listed", "host", "port", "allowed"),
    [
        ("site.org", "site.org", 443, True),
        ("site.org", "Site.org.", 8080, True),
        ("site.org", "evil-site.org", 443, False),
        ("site.org", "site.org.evil.com", 443, False),
        ("site.org", "files.site.org", 443, False),
        ("*.site.org", "files.site.org", 443, True),
        ("*.site.org", "a.b.site.org", 443, True),
        ("*.site.org", "site.org", 443, False),
        ("*.site.org", "evilsite.org", 443, False),
        ("site.org:443", "site.org", 443, True),
        ("site.org:443", "site.org", 80, False),
        ("10.0.0.0/8", "10.1.2.3", 5432, True),
        ("10.0.0.0/8", "11.1.2.3", 5432, False),
        ("10.0.0.0/8:5432", "10.1.2.3", 22, False),
        ("192.0.2.7", "::ffff:192.0.2.7", 80, True),
        ("2001:db8::/32", "2001:db8::1", 80, True),
        ("[2001:db8::1]:443", "2001:db8::1", 443, True),
        ("[2001:db8::1]:443", "2001:db8::1", 80, False),
        ("10.0.0.1", "host-at-10-0-0-1.example.com", 80, False),
        ("bücher.example", "xn--bcher-kva.example", 443, True),
    ],
)
def test_a_list_of_hosts_means(listed: str, host: str, port: int, allowed: bool) -> None:
    assert Rules([listed]).allows(host, port) is allowed


@pytest.mark.parametrize(
    "text", ["", "*", "https://site.org", "site.org/simple", "a b", "*.*.org", "site.org:0", "1.2.3", "a..b", "-x.org"]
)
def test_what_is_no_host_cannot_be_listed(text: str) -> None:
    with pytest.raises(ValueError, match=r"host that can be allowed|no port"):
        Rules([text])


def test_an_empty_list_allows_nothing() -> None:
    assert not Rules([]).allows("site.org", 443)
    assert not Rules([]).knows("site.org")
    assert not Rules([], everything=True).allows("", 80)


def test_only_a_port_that_one_name_has_tells_whom_a_connection_is_for() -> None:
    rules = Rules(["db.example.com:5432", "a.example.com", "b.example.com", "*.c.example.com:8443"])
    assert [rules.sole(port) for port in (5432, 443, 8443)] == ["db.example.com", None, None]
    assert rules.ports == [80, 443, 5432, 8443]


def client_hello(name: str) -> bytes:
    ours, out = ssl.MemoryBIO(), ssl.MemoryBIO()
    with pytest.raises(ssl.SSLWantReadError):
        ssl.create_default_context().wrap_bio(ours, out, server_hostname=name).do_handshake()
    return out.read()


@pytest.mark.parametrize("size", [1, 7, 100, 10_000])
def test_a_tls_client_is_understood_however_its_greeting_comes(size: int) -> None:
    hello, said = client_hello("api.example.com"), None
    for end in range(size, len(hello) + size, size):
        said = host_of(hello[:end])
        assert said is None or end >= len(hello)
    assert said == "api.example.com"


def test_an_http_client_is_understood() -> None:
    assert host_of(b"GET / HTTP/1.1\r\nAccept: */*\r\nhost: Example.com:8080\r\n\r\n") == "Example.com"
    assert host_of(b"GET / HTTP/1.1\r\nHost: exam") is None
    assert host_of(b"GET / HTTP/1.0\r\n\r\n") == ""


@given(st.binary(max_size=400) | st.binary(max_size=400).map(lambda rest: b"\x16\x03\x01\x00\x60" + rest))
def test_no_greeting_breaks_the_relay(data: bytes) -> None:
    assert host_of(data) is None or isinstance(host_of(data), str)


@given(st.binary(max_size=200) | st.binary(max_size=200).map(lambda rest: b"ab\x01\x00\x00\x01\0\0\0\0\0\0" + rest))
def test_no_question_breaks_the_name_server(data: bytes) -> None:
    asked = name_asked(data)
    if asked is not None:
        assert answer(data, asked[2], asked[1], b"\x7f\x42\x00\x01")[:2] == data[:2]


async def test_a_name_below_a_listed_one_does_not_lead_to_the_machine_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    found = socket.getaddrinfo("127.0.0.1", 0, type=socket.SOCK_STREAM)
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    server = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    with pytest.raises(PermissionError, match="an address of this machine"):
        await Relay(Rules(["*.example.com"]), "127.66.0.1")._connect("x.example.com", port)
    _, writer = await Relay(Rules([f"x.example.com:{port}"]), "127.66.0.1")._connect("x.example.com", port)
    writer.close()
    server.close()
