"""What a run of the suite says, and to whom."""
