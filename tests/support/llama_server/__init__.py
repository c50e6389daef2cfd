"""Runs llama-server's own test files against ``ggplug serve``.

The files come with llama.cpp; they are not part of this repository.  Their models, which they load from the hub, are
replaced by small ones that are made here: with vocabularies that cut the tests' texts into as many tokens, and with
weights that write the words that the tests look for.
"""
