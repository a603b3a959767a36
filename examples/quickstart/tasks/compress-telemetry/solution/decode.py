"""The inverse of encode.py."""

import lzma
import sys
from itertools import accumulate

FILTERS = [{"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME, "lc": 0, "lp": 0, "pb": 0}]
HEADER = "minute,temperature,humidity,pressure,wind"


def main():
    data = sys.stdin.buffer.read()
    if data[0] == 0:
        sys.stdout.buffer.write(lzma.decompress(data[1:]))
        return
    columns, at = [], 1
    while at < len(data):
        first = int.from_bytes(data[at : at + 2], "big", signed=True)
        size = int.from_bytes(data[at + 2 : at + 4], "big")
        body = lzma.decompress(data[at + 4 : at + 4 + size], lzma.FORMAT_RAW, filters=FILTERS)
        steps = [byte - 256 if byte > 127 else byte for byte in body]
        columns.append(list(accumulate(steps[1:], initial=first)))
        at += 4 + size
    rows = zip(*columns)
    print("\n".join([HEADER, *(f"{n}," + ",".join(f"{v / 10:.1f}" for v in row) for n, row in enumerate(rows)), ""]), end="")


main()
