"""Rows picked and rows written, by index."""
