"""Rotary position embedding, alone and into rows of a cache."""
