"""The only way out of a sandbox whose network has a list of hosts: names are answered, and connections relayed, for those alone.

All but `access` need nothing but Python's own library, so that they can be sent to where a sandbox is.
"""
