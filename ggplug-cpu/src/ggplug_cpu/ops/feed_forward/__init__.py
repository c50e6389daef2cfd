"""Feed-forward layers in one pass."""
