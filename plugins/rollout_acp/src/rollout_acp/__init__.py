"""Agents that speak the Agent Client Protocol (ACP), version 1, over the standard streams of a process in the environment."""
