"""Answers questions from a folder of text: an encoder finds passages, a language model answers from them."""
