"""Text that a language model writes: the loop of tokens, drafts of them, and their text up to a stop string."""
