"""Decodes many texts with a language model, texts of similar length in one step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import numpy.typing as npt

from ggplug_models.state.batching import in_steps
from ggplug_models.state.cells import GRANULE
from ggplug_models.state.session import LanguageModel, Session
from ggplug_models.state.steps import Outputs

TOGETHER = 512
"""Maximum number of tokens of a step; at this size, arithmetic takes longer than reading the weights."""


def vectors_of(
    model: LanguageModel, texts: Sequence[npt.NDArray[np.int64]], batch: int, outputs: Outputs
) -> Iterator[tuple[list[int], list[npt.NDArray[np.float32]]]]:
    """Yields, for texts that are computed together, their indices and the normalised vectors of the last block.

    ``batch``: maximum number of texts computed together.  ``outputs``: the tokens whose vectors are returned, as in
    :meth:`.Session.decode`.  Longer texts come first.  Needs memory for one step only.  Raises OutOfMemoryError,
    FreedError.
    """
    lengths = [len(text) for text in texts]
    session: Session | None = None
    try:
        for chosen in groups(lengths, batch, alike=model.keeps_states, is_long=model.is_long):
            longest = lengths[chosen[0]]
            fits = session is not None and model.is_long(session.n_ctx) is model.is_long(longest)
            if session is None or not fits or session.n_seq < len(chosen):
                if session is not None:
                    session.free()
                session = model.session(longest, min(_most(longest, batch), len(texts)), cache_type="f32")
            session.clear()
            tokens = {seq: texts[place].tolist() for seq, place in enumerate(chosen)}
            found = session.decode(tokens, outputs, hidden=True, few=session.micro_batch)
            yield chosen, [found[seq] for seq in tokens]
    finally:
        if session is not None:
            session.free()


def groups(
    lengths: Sequence[int], batch: int, *, alike: bool, is_long: Callable[[int], bool] = lambda length: False
) -> Iterator[list[int]]:
    """Yields the indices of texts that are computed together, the longest first.

    ``alike``: only texts of equal length are computed together.  ``is_long``: whether a text of this length is computed
    differently from short ones.
    """
    order = sorted(range(len(lengths)), key=lambda place: -lengths[place])
    while order:
        longest = lengths[order[0]]
        least = longest if alike else in_steps(longest) - GRANULE
        found = order[: _most(longest, batch)]
        others = (
            n
            for n, place in enumerate(found)
            if lengths[place] < least or is_long(lengths[place]) is not is_long(longest)
        )
        count = next(others, len(found))
        yield order[:count]
        del order[:count]


def _most(longest: int, batch: int) -> int:
    return max(1, min(batch, TOGETHER // in_steps(longest)))
