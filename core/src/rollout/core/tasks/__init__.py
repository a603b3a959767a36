"""Tasks and datasets: reading folders, registries and git repositories."""
