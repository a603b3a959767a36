"""An example of a Rollout plugin: an agent and a metric."""
