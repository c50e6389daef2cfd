"""Sums of rows selected by index."""
