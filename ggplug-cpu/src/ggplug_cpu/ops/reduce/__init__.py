"""Sums, means and positions of maxima."""
