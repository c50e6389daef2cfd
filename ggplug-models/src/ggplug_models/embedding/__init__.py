"""Embeddings: checks of arguments, decoding of many texts in one step, and pooling."""
