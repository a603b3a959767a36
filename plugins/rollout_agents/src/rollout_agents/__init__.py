"""Command line agents as data: a manifest says how one is installed and run."""

from rollout_agents.agent import ManifestAgent, ManifestOptions, agent_class, agent_from
from rollout_agents.manifest import Manifest, read_manifest

__all__ = ["Manifest", "ManifestAgent", "ManifestOptions", "agent_class", "agent_from", "read_manifest"]
