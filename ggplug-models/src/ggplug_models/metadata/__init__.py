"""Reads the metadata of a model's file by key, and checks types and ranges."""
