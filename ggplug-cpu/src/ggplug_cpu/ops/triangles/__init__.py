"""Bands of matrices, and triangular systems."""
