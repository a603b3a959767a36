"""Sandboxes of namespaces and overlays, on this machine or another: what `type: local` and others like it are made of.

`inside/` is what runs outside Rollout's own process: Python's standard library only, so that it can be sent elsewhere.
"""
