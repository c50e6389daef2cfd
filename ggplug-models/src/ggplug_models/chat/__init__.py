"""Chats as prompts: templates of Jinja from anywhere, within limits."""
