"""Windows of an image, and relative positions."""
