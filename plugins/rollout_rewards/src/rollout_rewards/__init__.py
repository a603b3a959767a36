"""Reward functions for Rollout."""
