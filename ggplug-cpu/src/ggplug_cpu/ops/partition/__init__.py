"""Partition of images into windows, and relative positions."""
