"""The expected values of results, and the comparison with them."""
