"""Copies of bytes, of elements at any strides, and into other types."""
