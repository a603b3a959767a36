"""The `local` environment: sandboxes on this machine, made of namespaces and overlays, without any engine."""

from rollout.builtin.local.backend import LocalBackend, LocalOptions

__all__ = ["LocalBackend", "LocalOptions"]
