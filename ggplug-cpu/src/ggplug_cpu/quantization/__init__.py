"""Encoding of weights on all threads, byte for byte as in files."""
