"""Interpolation: images resized."""
