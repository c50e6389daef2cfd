"""The commands that this package adds to ``ggplug``, a module each, and what they have in common."""
