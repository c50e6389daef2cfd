"""Applies a constraint to any function that chooses tokens."""

from __future__ import annotations

import copy
from collections.abc import Sequence

from ggplug.errors import ParameterError
from ggplug_models.sampling.parameters import Sampling
from ggplug_models.sampling.sampler import Chooses, Constraint, Logits, Sampler, forbid


def constrained(choose: Chooses | None, constraint: Constraint) -> Chooses:
    """A function that chooses as ``choose`` does, among the tokens that ``constraint`` allows.

    ``choose``: None: the token with the largest logit.  A sampler is copied; the copy draws from the same random
    numbers.  Raises ParameterError for a sampler that has a constraint already.
    """
    if choose is None:
        return Sampler(Sampling(temperature=0.0), constraint=constraint)
    if not isinstance(choose, Sampler):
        return _Constrained(choose, constraint)
    if choose.constraint is not None:
        raise ParameterError(
            "the sampler has a constraint, which would replace that of the tools",
            got=choose.constraint,
            remedy="pass a sampler without a constraint, or no tools",
        )
    found = copy.copy(choose)
    found.constraint = constraint
    return found


class _Constrained:
    """Calls a function with logits in which forbidden tokens are -inf."""

    def __init__(self, choose: Chooses, constraint: Constraint) -> None:
        self._choose = choose
        self._constraint = constraint

    def __call__(self, logits: Logits, history: Sequence[int]) -> int:
        changed = logits.copy()
        forbid(changed, self._constraint)
        token = self._choose(changed, history)
        self._constraint.accept(token)
        return token
