"""Attention in one pass, of products and a softmax."""
