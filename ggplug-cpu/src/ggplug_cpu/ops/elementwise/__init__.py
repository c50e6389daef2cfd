"""Elementwise ops, single and in chains."""
