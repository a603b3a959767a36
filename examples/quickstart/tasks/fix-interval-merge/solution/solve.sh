#!/bin/bash
set -euo pipefail

cat > /app/intervals.py <<'PYTHON'
"""Arithmetic of half-open intervals of time: (start, end) covers start and not end."""


def merge(intervals):
    """The same time as a sorted list of intervals of which no two overlap or touch."""
    merged = []
    for start, end in sorted(intervals):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return merged


def subtract(busy, window):
    """What of the interval `window` is not covered by the intervals `busy`, as merge() would return it."""
    free = []
    cursor, limit = window
    for start, end in merge(busy):
        if start >= limit:
            break
        if start > cursor:
            free.append((cursor, start))
        cursor = max(cursor, end)
    if cursor < limit:
        free.append((cursor, limit))
    return free


def total(intervals):
    """How much time is covered by at least one of the intervals."""
    return sum(end - start for start, end in merge(intervals))
PYTHON
python3 /app/check.py
