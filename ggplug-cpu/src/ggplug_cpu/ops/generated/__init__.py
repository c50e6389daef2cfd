"""Numbers that follow from their position."""
