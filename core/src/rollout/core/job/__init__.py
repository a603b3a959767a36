"""A job: planning trials, running them, keeping and reporting their results."""
