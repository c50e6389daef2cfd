"""Converts vocabularies: the tokens of a folder, how its tokenizer splits texts, and its special tokens."""
