"""Many texts read by a language model, those of similar length in one step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import numpy.typing as npt

from ggplug_models.state.cells import GRANULE
from ggplug_models.state.session import LanguageModel, Session, in_steps
from ggplug_models.state.steps import Outputs

TOGETHER = 512
"""Tokens of a step: with so many, products take as long as their numbers do, not as long as reading the weights."""


def vectors_of(
    model: LanguageModel, texts: Sequence[npt.NDArray[np.int64]], batch: int, outputs: Outputs
) -> Iterator[tuple[list[int], list[npt.NDArray[np.float32]]]]:
    """The last block's vectors, normed, of texts that are computed together, with the places of these texts.

    ``batch``: texts together at most.  ``outputs``: of which tokens, as :meth:`.Session.decode` has it.  Longer texts
    come first.  Takes memory for one step at a time.  Raises OutOfMemoryError, FreedError.
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
            given = {seq: texts[place].tolist() for seq, place in enumerate(chosen)}
            found = session.decode(given, outputs, hidden=True, few=session.micro_batch)
            yield chosen, [found[seq] for seq in given]
    finally:
        if session is not None:
            session.free()


def groups(
    lengths: Sequence[int], batch: int, *, alike: bool, is_long: Callable[[int], bool] = lambda length: False
) -> Iterator[list[int]]:
    """Places of texts that are computed together, the longest first.

    ``alike``: only texts of one length.  ``is_long``: whether a text is computed in another way than short ones.
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
