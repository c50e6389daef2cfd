"""Matrix products, and what is computed with them."""
