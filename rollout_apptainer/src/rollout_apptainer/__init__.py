"""Rollout environments as Apptainer instances."""
