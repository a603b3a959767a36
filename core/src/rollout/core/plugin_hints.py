"""Which distribution to install for a plugin name that is known but not installed."""

from __future__ import annotations

_AGENTS = (
    "aider",
    "amp",
    "claude",
    "claude-code",
    "cline",
    "codex",
    "copilot",
    "cpe",
    "crush",
    "cursor",
    "gemini",
    "goose",
    "kimi",
    "mini-swe-agent",
    "openclaw",
    "opencode",
    "openhands",
    "pi",
    "qwen-code",
    "swe-agent",
)

_REWARDS = ("exact-match", "f1", "contains", "similarity", "numeric", "mcq", "math", "code", "pytest", "llm-judge")

_DISTRIBUTIONS: dict[str, dict[str, str]] = {
    "environments": {
        "docker": "rollout-docker",
        "apptainer": "rollout-apptainer",
        "singularity": "rollout-apptainer",
        "ssh": "rollout-ssh",
    },
    "rewards": dict.fromkeys(_REWARDS, "rollout-rewards"),
    "agents": {**dict.fromkeys(_AGENTS, "rollout-agents"), "acp": "rollout-acp", "acpx": "rollout-acp"},
}


def distribution_for(kind: str, name: str) -> str | None:
    """The distribution that is known to provide the plugin; None when nothing is known."""
    return _DISTRIBUTIONS.get(kind, {}).get(name.lower().replace("_", "-"))


def known_names(kind: str) -> list[str]:
    """The names that some distribution is known to provide."""
    return list(_DISTRIBUTIONS.get(kind, {}))
