"""Changes of logits before sampling: penalties for repetitions, and biases."""

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
"""Token sequences that end a repetition: by their first token, the tokens that must follow it."""

LONGEST_TAIL = 20
"""Maximum number of tokens of a breaker after its first one."""

PASSES = 8
"""Limit of the comparisons of the simple search for repetitions, in lengths of the text."""

LARGEST_EXPONENT = 88.7228391
"""The logarithm of the largest float32, which limits penalties."""


def bias(logits: Logits, biases: Mapping[int, float]) -> None:
    """Adds the biases to the logits.  Raises ParameterError for a token outside of the vocabulary."""
    if not biases:
        return
    largest = max(biases)
    if largest >= len(logits):
        raise ParameterError(f"logit_bias has the token {largest}; token ids are 0 to {len(logits) - 1}", got=largest)
    tokens = list(biases)
    added = np.array(list(biases.values()), np.float64)
    logits[tokens] = _held(logits[tokens] + added, np.isneginf(logits[tokens]) | np.isneginf(added))


def repetition(logits: Logits, before: Ids, repeat: float, presence: float, frequency: float) -> None:
    """Makes the tokens in ``before`` less probable.

    ``repeat``: divides positive logits and multiplies others (Keskar et al. 2019, CTRL, with llama.cpp's correction for
    negative ones).  ``presence``: is subtracted once; ``frequency``: for each occurrence of the token (OpenAI).
    """
    if not len(before) or (repeat == 1 and not presence and not frequency):
        return
    tokens, counts = np.unique(before, return_counts=True)
    old = logits[tokens]
    with np.errstate(over="ignore"):  # _held limits what overflows float32
        found = np.where(old > 0, old / np.float32(repeat), old * np.float32(repeat))
        found = found - (counts * frequency + presence).astype(np.float32)
    logits[tokens] = _held(found, np.isneginf(old))


def dry(logits: Logits, before: Ids, multiplier: float, base: float, allowed: int, breakers: Breakers) -> None:
    """Makes tokens that would continue a repetition less probable (pi6am 2024, "DRY", in koboldcpp and llama.cpp).

    Subtracts ``multiplier * base ** (n - allowed)`` from the logit of a token that followed the last ``n`` tokens when
    they occurred before, if ``n`` is at least ``allowed``.
    """
    if not multiplier or len(before) <= allowed:
        return
    limit = _unbroken(before, breakers)
    if limit < allowed:
        return
    most = int(LARGEST_EXPONENT / math.log(base)) if base > 1.000001 else 0
    lengths = _repeated(before, min(limit, allowed + most))
    places = np.flatnonzero(lengths >= allowed)
    places = places[np.argsort(lengths[places], kind="stable")]  # so that the longest repetition of a token counts
    exponents = dict(zip(before[places + 1].tolist(), (lengths[places] - allowed).tolist(), strict=True))
    for token, exponent in exponents.items():
        if () not in breakers.get(token, ()):
            old = logits[token]
            logits[token] = _held(old - np.float64(multiplier) * base**exponent, np.isneginf(old))


def _held(changed: npt.NDArray[np.floating], forbidden: npt.NDArray[np.bool_]) -> Logits:
    """Changed logits within the range of float32; -inf exactly for the forbidden tokens."""
    largest = np.finfo(np.float32).max
    return np.where(forbidden, -np.inf, np.clip(changed, -largest, largest)).astype(np.float32)


def _unbroken(before: Ids, breakers: Breakers) -> int:
    """The number of tokens after the last breaker."""
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
    """For each position but the last, the number of tokens up to it, at most ``most``, that equal the last tokens.

    Usually few positions have any, so they are compared length by length.  In a text that repeats itself, that takes
    too long; then one pass over the text finds all.
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
    """For each position, the length of the common prefix of the text and its rest from there (Gusfield 1997, "Z").

    It takes linear time.
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
    """The token sequences for the strings that end a repetition.

    A token that contains a string ends the repetition.  A token that ends with the beginning of a string ends it if the
    tokens of the rest follow.
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
