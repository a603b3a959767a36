"""`environment.type: ssh`: sandboxes on plain remote machines."""
