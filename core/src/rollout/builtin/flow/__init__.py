"""The `flow` agent: Python code that works on a task."""

from rollout.builtin.flow.agent import FlowAgent, FlowOptions

__all__ = ["FlowAgent", "FlowOptions"]
