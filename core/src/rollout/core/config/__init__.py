"""Configuration: what a job file and a task.toml may say, and how files become Structs."""
