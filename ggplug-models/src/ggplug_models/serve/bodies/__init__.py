"""What clients send, checked, and what they ask for in any API."""
