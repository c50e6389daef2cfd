"""Rows added by index."""
