"""Products of columns."""
