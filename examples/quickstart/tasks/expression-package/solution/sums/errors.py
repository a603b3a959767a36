"""What can be wrong with a line."""


class SumError(Exception):
    """Its text is what is printed after `error: `."""
