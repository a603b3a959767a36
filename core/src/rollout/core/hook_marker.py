"""The mark of a hook implementation, apart from the hook bus so that only those who use it import pluggy."""

from __future__ import annotations

import pluggy

hookimpl = pluggy.HookimplMarker("rollout")
"""Marks a function as the implementation of the hook of its name; see rollout.core.hooks."""
