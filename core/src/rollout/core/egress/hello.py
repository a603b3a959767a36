"""What the first bytes and packets say of whom they are for: TLS and HTTP greetings, questions to a name server."""

from __future__ import annotations

import struct

MAX_HEAD_BYTES = 64 * 1024

_REFUSED, _NO_SUCH_NAME, _FINE = 5, 3, 0
_A = 1


def host_of(data: bytes) -> str | None:
    """Whom a TLS or HTTP client wants; an empty text when it does not say, None when more bytes are needed."""
    if data[:1] == b"\x16":
        return _server_name(data)
    head, end, _ = data.partition(b"\r\n\r\n")
    if not end and len(data) < MAX_HEAD_BYTES:
        return None
    for line in head.split(b"\r\n")[1:]:
        name, colon, value = line.partition(b":")
        if colon and name.strip().lower() == b"host":
            return _without_port(value.strip().decode("latin-1"))
    return ""


def _without_port(host: str) -> str:
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0] if host.count(":") == 1 else host


def _server_name(data: bytes) -> str | None:
    """The server name of a ClientHello (RFC 8446 4.1.2, RFC 6066 3). It may come in several records."""
    hello, rest = b"", data
    while len(rest) >= 5 and rest[0] == 0x16:
        size = int.from_bytes(rest[3:5], "big")
        hello += rest[5 : 5 + size]
        if len(hello) >= 4 and len(hello) >= 4 + int.from_bytes(hello[1:4], "big"):
            try:
                return _name_in(hello)
            except (IndexError, struct.error):
                return ""
        if len(rest) < 5 + size:
            break
        rest = rest[5 + size :]
    return None if len(data) < MAX_HEAD_BYTES else ""


def _name_in(hello: bytes) -> str:
    at = 4 + 2 + 32
    at += 1 + hello[at]  # session
    at += 2 + struct.unpack_from("!H", hello, at)[0]  # ciphers
    at += 1 + hello[at]  # compression
    end = at + 2 + struct.unpack_from("!H", hello, at)[0]
    at += 2
    while at + 4 <= min(end, len(hello)):
        kind, size = struct.unpack_from("!HH", hello, at)
        if kind == 0:
            length = struct.unpack_from("!H", hello, at + 7)[0]
            return hello[at + 9 : at + 9 + length].decode("latin-1")
        at += 4 + size
    return ""


def name_asked(query: bytes) -> tuple[str, int, int] | None:
    """Name, type and end of the one question of a DNS query (RFC 1035 4.1); None when it is no such query."""
    if len(query) < 17 or query[2] & 0x80 or query[4:6] != b"\0\1":
        return None
    labels, at = [], 12
    while at < len(query) and query[at]:
        size = query[at]
        if size > 63 or at + 1 + size >= len(query):
            return None
        labels.append(query[at + 1 : at + 1 + size].decode("latin-1"))
        at += 1 + size
    if len(query) < at + 5:
        return None
    return ".".join(labels), struct.unpack_from("!H", query, at + 1)[0], at + 5


def answer(query: bytes, end: int, kind: int, address: bytes | None) -> bytes:
    """The answer to a query: the IPv4 address for type A, nothing for other types; no such name when there is no address."""
    code = _NO_SUCH_NAME if address is None else _FINE
    found = address is not None and kind == _A
    head = query[:2] + struct.pack("!HHHHH", 0x8180 | (query[2] & 1) << 8 | code, 1, int(found), 0, 0)
    record = b"" if not found else b"\xc0\x0c" + struct.pack("!HHIH", _A, 1, 5, 4) + (address or b"")
    return head + query[12:end] + record


def refusal(query: bytes) -> bytes:
    """The answer to what cannot be answered."""
    return query[:2] + struct.pack("!HHHHH", 0x8000 | _REFUSED, 0, 0, 0, 0)
