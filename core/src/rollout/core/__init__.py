"""The kernel: protocols, types, configuration, trials and jobs. It imports no plugin and nothing of the command line."""
