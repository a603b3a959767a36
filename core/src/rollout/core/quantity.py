"""Kubernetes quantities ("500m", "2G", "2Gi", 1.5) as exact numbers.

Grammar and suffixes: the "Quantity" definition of the Kubernetes API reference. `G` is 1000-based, `Gi` 1024-based, `m` is milli.
"""

from __future__ import annotations

import re
from decimal import Decimal

_SUFFIXES = {
    "": Decimal(1),
    "n": Decimal("1e-9"),
    "u": Decimal("1e-6"),
    "m": Decimal("1e-3"),
    "k": Decimal(10**3),
    "M": Decimal(10**6),
    "G": Decimal(10**9),
    "T": Decimal(10**12),
    "P": Decimal(10**15),
    "E": Decimal(10**18),
    "Ki": Decimal(2**10),
    "Mi": Decimal(2**20),
    "Gi": Decimal(2**30),
    "Ti": Decimal(2**40),
    "Pi": Decimal(2**50),
    "Ei": Decimal(2**60),
}
_QUANTITY = re.compile(r"([+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+))(?:([eE][+-]?[0-9]{1,3})|([numkMGTPE]|[KMGTPE]i)?)", re.ASCII)
_WITH_BYTE = re.compile(r"\s*(Ki|[MGTPE]i?)B$")
_MEBIBYTE = 2**20
_MAX_BYTES = 2**63 - 1

Quantity = str | int | float
"""A quantity as a user may write it."""


def parse_quantity(value: Quantity) -> Decimal:
    """The exact value of a quantity.

    Raises:
        ValueError: not a quantity; the text says what one looks like.
    """
    text = str(value).strip() if isinstance(value, str) else repr(value)
    match = _QUANTITY.fullmatch(text)
    if match is None or isinstance(value, bool):
        raise ValueError(f"{_shown(value)} is not a quantity; write for instance 2, 0.5, 500m, 512Mi or 2G")
    number, exponent, suffix = match.groups()
    return Decimal(number + exponent) if exponent else Decimal(number) * _SUFFIXES[suffix or ""]


def parse_cpus(value: Quantity) -> float:
    """Number of CPUs, fractions allowed ("500m" is 0.5).

    Raises:
        ValueError: not a quantity, or not above 0.
    """
    cpus = float(parse_quantity(value))
    if not 0 < cpus <= 1_000_000:
        raise ValueError(f"{_shown(value)} is not a number of CPUs above 0")
    return cpus


def parse_bytes(value: Quantity) -> tuple[int, str | None]:
    """Bytes of memory or storage, rounded up, and a warning when the value had to be read in another unit.

    A bare number below 1Mi cannot be the bytes of a container and is read as MiB (the format's own example is
    `memory = "2048"`); the warning says so. `4 GiB` and `4GB` are 4Gi and 4G.

    Raises:
        ValueError: not a quantity, not above 0, or beyond 2^63 - 1 bytes.
    """
    if isinstance(value, str):
        value = _WITH_BYTE.sub(r"\1", value.strip())
    quantity = parse_quantity(value)
    warning = None
    if re.fullmatch(r"[0-9.]+", str(value).strip()) and 0 < quantity < _MEBIBYTE:
        quantity *= _MEBIBYTE
        warning = f"{value!r} has no unit and is too small for bytes: read as {value}Mi"
    size = int(quantity.to_integral_value(rounding="ROUND_CEILING"))
    if not 0 < size <= _MAX_BYTES:
        raise ValueError(f"{_shown(value)} is not a size above 0 and below 8Ei")
    return size, warning


def _shown(value: Quantity) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
