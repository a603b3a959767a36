"""Which version of rollout-core is installed."""

from __future__ import annotations

import os
import sys


def installed_version() -> str:
    """The version of rollout-core.

    The name of its `.dist-info` folder says it; importlib.metadata would say the same, and takes longer to import than
    everything else that `rollout --version` does.
    """
    for folder in sys.path:
        try:
            names = os.listdir(folder or ".")
        except OSError:
            continue
        for name in names:
            if name.startswith("rollout_core-") and name.endswith(".dist-info"):
                return name.removeprefix("rollout_core-").removesuffix(".dist-info")
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("rollout-core")
    except PackageNotFoundError:
        return "(not installed)"
