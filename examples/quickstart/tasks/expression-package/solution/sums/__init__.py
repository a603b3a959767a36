"""A calculator for exact arithmetic: sums.tokens -> sums.parser -> sums.machine."""
