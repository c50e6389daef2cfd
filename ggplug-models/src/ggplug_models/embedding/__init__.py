"""Vectors of texts: what callers may give, many texts in one step, and how vectors of tokens become one."""
