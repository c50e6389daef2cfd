"""Checks arguments (numbers, sequences, callables, token ids) and the presence of optional libraries."""
