"""Drafts that need more than a text: heads, counts of many texts; and what chooses a kind of drafts."""
