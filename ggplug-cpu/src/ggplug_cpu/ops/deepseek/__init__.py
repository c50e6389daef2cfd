"""What DeepSeek's models have of their own."""
