"""What a model's file says, read by key, type and range."""
