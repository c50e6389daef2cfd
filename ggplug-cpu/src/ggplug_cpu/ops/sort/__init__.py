"""Sorting within rows."""
