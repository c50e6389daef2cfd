"""Convolutions, as products of an image's windows."""
