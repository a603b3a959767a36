"""What plugin authors test with: contract suites to subclass, and fakes."""
