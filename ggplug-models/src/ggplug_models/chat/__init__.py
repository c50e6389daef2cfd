"""Converts chats to prompts, with Jinja templates in a sandbox."""
