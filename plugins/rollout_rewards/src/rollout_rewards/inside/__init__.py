"""What runs in trials' environments: modules of the standard library alone, for Python 3.8 and later."""
