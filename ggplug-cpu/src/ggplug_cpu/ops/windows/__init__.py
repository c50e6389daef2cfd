"""What becomes of windows that slide over planes."""
