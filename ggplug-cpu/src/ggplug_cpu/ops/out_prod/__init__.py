"""Outer products summed over columns (``out_prod``)."""
