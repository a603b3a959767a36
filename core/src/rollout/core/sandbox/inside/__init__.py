"""What runs outside Rollout's own process: a zygote that makes sandboxes, and the init of each sandbox.

Standard library only (Python >= 3.9) and no import of anything else of Rollout: the interpreter is started with `-I -S` and only
this package on its path, and the same files can be sent to another machine.
"""
