"""Normalisation of rows, and groups around it."""
