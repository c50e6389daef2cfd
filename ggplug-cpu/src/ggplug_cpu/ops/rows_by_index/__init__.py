"""Rows gathered and scattered by index."""
