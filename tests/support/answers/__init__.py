"""Answers that are recorded or scripted."""
