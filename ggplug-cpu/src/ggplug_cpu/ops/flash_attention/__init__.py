"""Attention as one op, and its gradients."""
