"""Which sequences, and how many of their tokens, are computed in one step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ggplug.errors import ParameterError
from ggplug_models.state.cells import GRANULE

FEW = 8
"""Sequences that get at most this many tokens are computed together."""


PART = 64
"""Minimum number of tokens of a step that is one of the parts of a larger one.

Steps of so many tokens give the same results as one of all, and are not much slower: generated tokens, one of each
sequence, are fewer, and two steps of them would read all weights twice.
"""


def steps_of(counts: Mapping[int, int], few: int, most: int, *, padded: bool) -> list[tuple[list[int], int]]:
    """The steps of a batch: for each, the sequences, and the maximum number of tokens of a sequence.

    ``counts``: the number of tokens by sequence.  Sequences with at most ``few`` share a step; ``most``: tokens of a
    sequence in a step.  ``padded``: whether a step may have padding tokens, and sequences without tokens in between.
    """
    steps: list[tuple[list[int], int]] = []
    together: list[int] = []
    for seq, count in sorted(counts.items()):
        if count > min(few, most):
            steps += [([seq], min(most, count - start)) for start in range(0, count, most)]
            continue
        if together and not _fit([counts[each] for each in together], count, seq - together[-1], padded=padded):
            steps.append((together, max(counts[each] for each in together)))
            together = []
        together.append(seq)
    if together:
        steps.append((together, max(counts[each] for each in together)))
    return steps


def divided(
    steps: Sequence[tuple[list[int], int]], counts: Mapping[int, int], parts: int
) -> list[tuple[list[int], int]]:
    """The steps of :func:`steps_of`, those of several sequences divided into up to ``parts`` of at least :data:`PART`
    tokens each, to be computed at the same time."""
    found = []
    for sequences, n in steps:
        size = max(-(-len(sequences) // parts), -(-PART // n))
        chosen = [sequences[start : start + size] for start in range(0, len(sequences), size)]
        if len(chosen) > 1 and len(chosen[-1]) * n < PART:
            chosen[-2:] = [[*chosen[-2], *chosen[-1]]]
        found += [(each, max(min(n, counts[seq]) for seq in each)) for each in chosen]
    return found


def _fit(counts: list[int], count: int, distance: int, *, padded: bool) -> bool:
    """Whether a sequence with ``count`` tokens joins a step of sequences with ``counts`` tokens.

    ``distance``: from the last of these sequences.  The step is padded; a recurrent state would also read padding
    tokens and the sequences in between, so models with states allow neither.
    """
    if not padded:
        return distance == 1 and count == counts[-1]
    return in_steps(max(*counts, count)) - min(*counts, count) <= GRANULE


def rows_of(rows: Mapping[int, Any], tokens: Mapping[int, Sequence[int]]) -> dict[int, npt.NDArray[np.float32]]:
    """The rows of each sequence as arrays.  Raises ParameterError if there is not one row for each token."""
    found = {seq: np.asarray(each, np.float32) for seq, each in rows.items()}
    shapes = {seq: each.shape[:1] if each.ndim == 2 else () for seq, each in found.items()}
    if shapes != {seq: (len(each),) for seq, each in tokens.items()}:
        got = {seq: each.shape for seq, each in found.items()}
        wanted = {seq: len(each) for seq, each in tokens.items()}
        raise ParameterError(
            f"vectors must have a row for each token: by sequence {wanted}, got the shapes {got}",
            got=got,
            wanted=wanted,
        )
    return found


def padded_rows(rows: Mapping[int, npt.NDArray[np.float32]], first: int, n_seq: int, n: int) -> npt.NDArray[np.float32]:
    """The rows of each sequence's tokens as those of a step: [n_seq * n, width]; zeros for its padding tokens."""
    width = next(iter(rows.values())).shape[-1]
    found = np.zeros((n_seq, n, width), np.float32)
    for seq, each in rows.items():
        found[seq - first, : len(each)] = each
    return found.reshape(-1, width)


def in_steps(n: int) -> int:
    """The number of tokens of a sequence in a step, rounded up so that few different graphs are needed."""
    if n <= FEW:
        return n
    step = min(max(8, 1 << (n - 1).bit_length() - 3), GRANULE)
    return -(-n // step) * step
