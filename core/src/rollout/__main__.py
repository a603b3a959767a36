"""The `rollout` command. What can be answered without importing the command line is answered here."""

from __future__ import annotations

import sys


def main() -> int:
    """Run the command line on `sys.argv` and return its exit code."""
    if len(sys.argv) == 2 and sys.argv[1] in ("--version", "-V"):
        sys.stdout.write(f"rollout {installed_version()}\n")
        return 0
    from rollout.cli.main import run

    return run(sys.argv[1:])


def installed_version() -> str:
    """The version of rollout-core.

    The name of its `.dist-info` folder says it; importlib.metadata would say the same, and takes longer to import than
    everything else that `rollout --version` does.
    """
    import os

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


if __name__ == "__main__":
    sys.exit(main())
