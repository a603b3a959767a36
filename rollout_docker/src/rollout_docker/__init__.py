"""`environment.type: docker`: sandboxes as containers of a Docker engine."""
