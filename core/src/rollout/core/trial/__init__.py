"""A trial: one agent's attempt at one task, from start to reward."""
