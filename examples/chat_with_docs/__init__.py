"""Answers from a folder of text: passages found by an encoder, an answer written from them by a language model."""
