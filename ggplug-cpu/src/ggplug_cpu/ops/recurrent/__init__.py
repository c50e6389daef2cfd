"""Layers whose state goes from token to token."""
