"""What runs on the other machine: Python >= 3.9 and its standard library, besides `rollout.core.sandbox.inside`, sent along."""
