"""Copies: of bytes, of elements at any strides, into other types."""
