"""What this machine is: part of what a layer depends on."""

from __future__ import annotations

import os


def machine_identity() -> str:
    """Distribution and release of this machine, and its architecture."""
    try:
        with open("/etc/os-release", encoding="utf-8", errors="replace") as file:
            lines = file.read().splitlines()
    except OSError:
        lines = []
    return " ".join([*sorted(line for line in lines if line.startswith(("ID=", "VERSION_ID="))), os.uname().machine])
