"""The `rollout` command. What can be answered without importing the command line is answered here."""

from __future__ import annotations

import sys

from rollout.version import installed_version


def main() -> int:
    """Run the command line on `sys.argv` and return its exit code."""
    if len(sys.argv) == 2 and sys.argv[1] in ("--version", "-V"):
        sys.stdout.write(f"rollout {installed_version()}\n")
        return 0
    from rollout.cli.main import run

    return run(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
