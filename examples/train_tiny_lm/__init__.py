"""A language model of characters, learned from nothing on this repository's documentation:
``python -m examples.train_tiny_lm``."""
