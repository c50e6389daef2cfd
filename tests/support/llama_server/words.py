"""Vocabularies for the texts of llama-server's tests.

The merges of ``PIECES`` were found by a search: with them, the prompts of the tests have as many tokens as with the
vocabularies of the models on the hub.
"""

from __future__ import annotations

PIECES = [
    *("inim", "quis", "ve", "st", "ulla", "▁b", "▁aliqu", "▁from", "▁it", "e?", "qu", "▁ad", "od", "do", "rom"),
    *("▁beli", "ing", "ng", "▁f", "▁h", "jo", "▁w", "ud", "lla", "unc", "tu", "▁is", "▁of", "▁t", "re", "ot", "▁ab"),
    *("in", "oding", "▁func", "liqu", "Lore", "en", "▁n", "bore", "▁li", "ning", "▁F", "se", "▁be", "end", "om", "ore"),
    *("▁th", "▁are", "▁c", "ou", "ver", "oo", "▁Lore", "ste", "ullam", "▁Hi", "is", "▁au", "▁best", "llo", "▁a", "it"),
    *(
        "He",
        "ll",
        "im",
        "you",
        "lo",
        "▁do",
        "▁5",
        "la",
        "rit",
        "k<",
        "▁e",
        "li",
        "Writ",
        "▁nulla",
        "of",
        "nc",
        "Hi",
        *("sy", "Bu", "But", "▁But", "sh", "she", "▁she", "ck", "ick"),
    ),
]
"""Tokens of several characters, those that are merged first before the others."""

STORY = ["going", "But", "she", "couldn't", "Suddenly", "Whillicter"]
"""Words that every text has, in this order, with one of ``OTHERS`` before the first and the second one."""

REST = ["everyone", "Jack", "said", "Whiskers", "felter", "little", "girl", "Jimmy", "wise", "owl", "bright"]
"""Words that follow them."""

OTHERS = ["one", "day", "many", "happy", "big", "red", "cat", "sun", "tree", "box", "sky", "hat", "toy"]
"""Words of which a text has one, drawn at random."""

TALE = ["Hello", "▁Hello"]
"""Further tokens of several characters of the model with an adapter."""

LEARNED = {0.3: "special", 0.7: "home", 1.0: "glass"}
"""Words that the adapter has that model write, by the scale at which it does."""

READ = [
    *(
        "i",
        "believe",
        "the",
        "meaning",
        "of",
        "life",
        "this",
        "test",
        "another",
        "write",
        "joke",
        "about",
        "ai",
        "from",
    ),
    *(
        "very",
        "long",
        "prompt",
        "which",
        "will",
        "not",
        "be",
        "truncated",
        "hello",
        "world",
        "goodbye",
        "string",
        "base",
    ),
    *("embedding", "output", "b", "c", "d", "string1", "string2", "string3", "64"),
]
"""Words that the embedding model reads as one token, those of ``RANKED`` too."""

RANKED = ["a", "is", "learning", "which", "city", "?", ",", "de", "la", "query"]
"""Words that the reranker reads as one token."""

SPLIT = ["pa", "##ri", "##s", "ca", "##pi", "##ta", "##le", "ma", "##chine"]
"""Parts of words that it reads as several."""
