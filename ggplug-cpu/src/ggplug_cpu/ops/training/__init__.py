"""Losses, and steps of optimisers."""
