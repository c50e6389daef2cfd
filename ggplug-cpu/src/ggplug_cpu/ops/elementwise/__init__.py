"""What works on every element, alone and in chains."""
