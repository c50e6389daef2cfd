"""Rotary position embedding, and its stores into rows of a cache."""
