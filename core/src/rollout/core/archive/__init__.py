"""Folders as tar streams, in both directions: the one place that reads what comes out of a sandbox.

`pack` writes GNU tar. `unpack` reads ustar, GNU and pax archives that an enemy may have made: it writes nothing outside its
target, follows no link, makes no device, takes no more than its limits, and no longer a header than a real file name needs.
Both work on ordinary blocking streams; backends run them in a thread.
"""

from rollout.core.archive.packing import pack
from rollout.core.archive.unpacking import unpack

__all__ = ["pack", "unpack"]
