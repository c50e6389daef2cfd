"""Changes of logits by what was said before: penalties for repetitions, and biases."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from ggplug.errors import ParameterError
from ggplug_models.tokenizers import Tokenizer

Logits = npt.NDArray[np.float32]
Ids = npt.NDArray[np.integer]
Breakers = Mapping[int, Sequence[tuple[int, ...]]]
"""By the first token of something that ends a repetition: the tokens that have to follow it."""

LONGEST_TAIL = 20
"""Tokens behind its first one that a breaker may have."""

PASSES = 8
"""So many times a text's length is looked at, to find repetitions, before the search that takes no more than that."""

LARGEST_EXPONENT = 88.7228391
"""The logarithm of the largest float32: no penalty is larger."""


def bias(logits: Logits, biases: Mapping[int, float]) -> None:
    """Adds the biases.  Raises ParameterError for a token that there is not."""
    if not biases:
        return
    largest = max(biases)
    if largest >= len(logits):
        raise ParameterError(f"logit_bias has the token {largest}; there are {len(logits)}", got=largest)
    tokens = list(biases)
    added = np.array(list(biases.values()), np.float64)
    logits[tokens] = _held(logits[tokens] + added, np.isneginf(logits[tokens]) | np.isneginf(added))


def repetition(logits: Logits, before: Ids, repeat: float, presence: float, frequency: float) -> None:
    """Makes tokens that were there less probable.

    ``repeat``: divides positive logits and multiplies others (Keskar et al. 2019, CTRL, with llama.cpp's mend for
    negative ones).  ``presence``, ``frequency``: are subtracted, once and as often as the token was there (OpenAI).
    """
    if not len(before) or (repeat == 1 and not presence and not frequency):
        return
    tokens, counts = np.unique(before, return_counts=True)
    given = logits[tokens]
    with np.errstate(over="ignore"):  # what becomes too large for single precision is held below
        found = np.where(given > 0, given / np.float32(repeat), given * np.float32(repeat))
        found = found - (counts * frequency + presence).astype(np.float32)
    logits[tokens] = _held(found, np.isneginf(given))


def dry(logits: Logits, before: Ids, multiplier: float, base: float, allowed: int, breakers: Breakers) -> None:
    """Makes tokens less probable that would continue a repetition (pi6am 2024, "DRY", in koboldcpp and llama.cpp).

    A token that followed the last ``n`` tokens when they occurred before, ``n`` being at least ``allowed``, loses
    ``multiplier * base ** (n - allowed)``.
    """
    if not multiplier or len(before) <= allowed:
        return
    limit = _unbroken(before, breakers)
    if limit < allowed:
        return
    most = int(LARGEST_EXPONENT / math.log(base)) if base > 1.000001 else 0
    lengths = _repeated(before, min(limit, allowed + most))
    places = np.flatnonzero(lengths >= allowed)
    places = places[np.argsort(lengths[places], kind="stable")]  # so the longest repetition of a token counts
    exponents = dict(zip(before[places + 1].tolist(), (lengths[places] - allowed).tolist(), strict=True))
    for token, exponent in exponents.items():
        if () not in breakers.get(token, ()):
            given = logits[token]
            logits[token] = _held(given - np.float64(multiplier) * base**exponent, np.isneginf(given))


def _held(changed: npt.NDArray[np.floating], forbidden: npt.NDArray[np.bool_]) -> Logits:
    """Changed logits, none of them larger than float32's; -inf for tokens that are forbidden, and for no other."""
    largest = np.finfo(np.float32).max
    return np.where(forbidden, -np.inf, np.clip(changed, -largest, largest)).astype(np.float32)


def _unbroken(before: Ids, breakers: Breakers) -> int:
    """How many of the last tokens come behind the last breaker."""
    if not breakers:
        return len(before)
    backwards = before[::-1].tolist()
    for n, token in enumerate(backwards):
        tails = breakers.get(token)
        if tails is not None:
            fitting = [len(t) for t in tails if len(t) <= n and list(t) == backwards[n - len(t) : n][::-1]]
            if fitting:
                return n - max(fitting)
    return len(before)


def _repeated(before: Ids, most: int) -> npt.NDArray[np.int64]:
    """For each place but the last: how many tokens, up to ``most``, end there as the last ones do.

    Few places mostly do, so that comparing these, length by length, is soon done.  Where that goes on, in a text that
    repeats itself, one pass over the text finds all.
    """
    found = np.zeros(len(before) - 1, np.int64)
    places = np.arange(len(found))
    looked_at = 0
    for length in range(most):
        places = places[places >= length]
        looked_at += len(places)
        if looked_at > PASSES * len(before):
            return np.minimum(_as_the_beginning(before[::-1].tolist())[:0:-1], most)
        places = places[before[places - length] == before[-1 - length]]
        if not len(places):
            break
        found[places] = length + 1
    return found


def _as_the_beginning(text: list[int]) -> npt.NDArray[np.int64]:
    """For each place of a text, how much of what begins there is as the text's beginning (Gusfield 1997, "Z").

    What lies within a stretch that is as the beginning is known from there; nothing is compared twice.
    """
    found = [0] * len(text)
    start = end = 0
    for place in range(1, len(text)):
        length = min(found[place - start], end - place) if place < end else 0
        while place + length < len(text) and text[length] == text[place + length]:
            length += 1
        if place + length > end:
            start, end = place, place + length
        found[place] = length
    return np.array(found, np.int64)


def breakers_of(tokenizer: Tokenizer, strings: Sequence[str]) -> dict[int, list[tuple[int, ...]]]:
    """The tokens that break a repetition, for strings that do.

    A token that contains the string is one; a token that ends with the string's beginning is one if the rest follows.
    """
    found: dict[int, list[tuple[int, ...]]] = {}
    texts = [tokenizer.piece(token).decode("utf-8", "replace") for token in range(tokenizer.n_vocab)]
    for string in strings:
        tails = {end: tuple(tokenizer.encode(string[end:])[:LONGEST_TAIL]) for end in range(1, len(string))}
        for token, text in enumerate(texts):
            if string in text:
                found.setdefault(token, []).append(())
            else:
                for end, tail in tails.items():
                    if text.endswith(string[:end]) and tail not in found.get(token, ()):
                        found.setdefault(token, []).append(tail)
    return found
