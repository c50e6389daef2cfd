"""The sampler: chooses tokens from logits, for one sequence."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ggplug.errors import ParameterError
from ggplug_models.checks.ids import token_ids
from ggplug_models.metadata.values import short_repr
from ggplug_models.sampling import candidates as steps
from ggplug_models.sampling import penalties
from ggplug_models.sampling.candidates import Candidates
from ggplug_models.sampling.mirostat import Mirostat
from ggplug_models.sampling.parameters import Sampling
from ggplug_models.tokenizers import Tokenizer

Logits = npt.NDArray[np.float32]


class LogitsError(ParameterError):
    """Logits from which no token can be chosen, because their computation failed.  ``got``: the largest of them."""


class Chooses(Protocol):
    """A function that chooses tokens, such as a :class:`Sampler`."""

    def __call__(self, logits: Logits, history: Sequence[int]) -> int:
        """The token after ``history``, from the logits, float32 of shape ``(n_vocab,)``."""


class Constraint(Protocol):
    """A constraint that forbids tokens, such as a grammar (:mod:`ggplug_models.sampling.grammar`)."""

    def allowed(self) -> npt.NDArray[np.bool_]:
        """The tokens that may come next, booleans of shape ``(n_vocab,)``; at least one is True."""

    def accept(self, token: int) -> None:
        """Advances by a token that was allowed."""

    def begin(self) -> None:
        """Starts a new text."""


class Sampler:
    """Chooses the tokens of one sequence.

    ``sampling``: the settings.  ``breakers``: for DRY, the token sequences that end a repetition
    (:func:`penalties.breakers_of`); by default :func:`.loop.generate` makes them from the model's tokenizer.
    ``constraint``: forbids tokens.  ``drawn``: the candidates among which the last token was drawn; None if the most
    probable token was taken.  ``seed``: the seed in use, also if ``sampling`` has none; the same seed and logits
    give the same tokens.

    Use a sampler for one sequence at a time: Mirostat and the random numbers have a state that continues from token to
    token, and from text to text; :meth:`begin` starts a text and resets the constraint.  A copy of a sampler, or a
    pickled one without a constraint, continues from the same state.  Raises ParameterError.
    """

    def __init__(
        self,
        sampling: Sampling | None = None,
        *,
        breakers: penalties.Breakers | None = None,
        constraint: Constraint | None = None,
    ) -> None:
        if not isinstance(sampling, Sampling | None):
            raise ParameterError(f"sampling must be a Sampling, got {short_repr(sampling)}", got=sampling)
        if breakers is not None and not isinstance(breakers, Mapping):
            wanted = "a dict of what breakers_of returns"
            raise ParameterError(f"breakers must be {wanted}, got {short_repr(breakers)}", got=breakers, wanted=wanted)
        methods = (getattr(constraint, name, None) for name in ("allowed", "accept", "begin"))
        if constraint is not None and not all(map(callable, methods)):
            raise ParameterError(
                f"constraint must have the methods allowed, accept and begin, got {short_repr(constraint)}",
                got=constraint,
                remedy="create one by Grammars(tokenizer), for instance with json_schema(schema)",
            )
        self.sampling = sampling or Sampling()
        self.constraint = constraint
        self.breakers = breakers
        seed = self.sampling.seed
        self.seed = int(np.random.SeedSequence().generate_state(1)[0]) if seed is None else seed
        self.random = np.random.default_rng(self.seed)
        s = self.sampling
        self.mirostat = Mirostat(s.mirostat, s.mirostat_tau, s.mirostat_eta) if s.mirostat else None
        keeps_the_best = s.typical_p >= 1 and not s.xtc_probability and "temperature" in s.order
        self._greedy = not s.mirostat and s.temperature == 0 and not s.dynamic_range and keeps_the_best
        self._ids = np.arange(0)
        self.drawn: Candidates | None = None

    def begin(self, tokenizer: Callable[[], Tokenizer]) -> None:
        """Starts a text: resets the constraint.  ``tokenizer()`` returns the tokenizer; called if DRY needs it."""
        if self.constraint is not None:
            self.constraint.begin()
        if self.sampling.dry_multiplier and self.breakers is None:
            self.breakers = penalties.breakers_of(tokenizer(), self.sampling.dry_breakers)

    def __call__(self, logits: Logits, history: Sequence[int]) -> int:
        """Chooses the token after ``history``.

        ``logits``: float32 of shape ``(n_vocab,)``; they are not changed.  ``history``: all tokens before it, or at
        least as many as the settings need.  Raises ParameterError for other logits, and if every token is forbidden;
        LogitsError as :func:`check_largest` does.
        """
        changed = self._changed(_checked(logits), history)
        if self._greedy:
            token = int(changed.argmax())
            if changed[token] == -np.inf:
                raise _forbidden()
        else:
            self.drawn = self._candidates(changed)
            token = self._drawn(self.drawn)
        if self.constraint is not None:
            self.constraint.accept(token)
        return token

    def candidates(self, logits: Logits, history: Sequence[int]) -> Candidates:
        """The candidates from which a call would draw the token; raises as a call does.

        They may include forbidden tokens, with the probability 0.  XTC draws a random number, as in a call.
        """
        return self._candidates(self._changed(_checked(logits), history))

    def _changed(self, logits: Logits, history: Sequence[int]) -> Logits:
        """The logits with biases and penalties, and -inf for forbidden tokens; the same array if nothing changes."""
        s = self.sampling
        penalised = s.penalty_last_n and (s.repeat_penalty != 1 or s.presence_penalty or s.frequency_penalty)
        if not (s.logit_bias or penalised or s.dry_multiplier or self.constraint is not None):
            return logits
        changed = logits.copy()
        penalties.bias(changed, s.logit_bias)
        if penalised:
            before = _last(history, s.penalty_last_n, len(logits))
            penalties.repetition(changed, before, s.repeat_penalty, s.presence_penalty, s.frequency_penalty)
        if s.dry_multiplier and s.dry_last_n:
            before = _last(history, s.dry_last_n, len(logits))
            penalties.dry(changed, before, s.dry_multiplier, s.dry_base, s.dry_allowed_length, self.breakers or {})
        if self.constraint is not None:
            forbid(changed, self.constraint)
        return changed

    def _candidates(self, logits: Logits) -> Candidates:
        if len(self._ids) != len(logits):
            self._ids = np.arange(len(logits))
        found = Candidates(self._ids, logits)
        if np.maximum.reduce(logits) == -np.inf:
            raise _forbidden()
        if self.mirostat is not None:
            s = self.sampling
            found = steps.temperature(found, s.temperature, s.dynamic_range, s.dynamic_exponent)
            return self.mirostat.within(found, len(logits))
        for name in self.sampling.order:
            found = _STEPS[name](found, self.sampling, self.random)
        return found

    def _drawn(self, candidates: Candidates) -> int:
        cumulative = candidates.probabilities.cumsum(dtype=np.float64)
        total = cumulative[-1]
        place = int(cumulative.searchsorted(self.random.random() * total, side="right"))
        place = min(place, int(cumulative.searchsorted(total)))  # the last one with a probability above 0
        if self.mirostat is not None:
            self.mirostat.chosen(float(candidates.probabilities[place]))
        return int(candidates.ids[place])


_STEPS: Mapping[str, Callable[[Candidates, Sampling, np.random.Generator], Candidates]] = {
    "top_n_sigma": lambda c, s, _: steps.top_n_sigma(c, s.top_n_sigma),
    "top_k": lambda c, s, _: steps.top_k(c, s.top_k),
    "typical_p": lambda c, s, _: steps.typical_p(c, s.typical_p),
    "top_p": lambda c, s, _: steps.top_p(c, s.top_p),
    "min_p": lambda c, s, _: steps.min_p(c, s.min_p),
    "xtc": lambda c, s, random: steps.xtc(c, s.xtc_probability, s.xtc_threshold, random),
    "temperature": lambda c, s, _: steps.temperature(c, s.temperature, s.dynamic_range, s.dynamic_exponent),
}


def _checked(logits: Logits) -> Logits:
    if not isinstance(logits, np.ndarray) or logits.dtype != np.float32 or logits.ndim != 1 or not logits.size:
        got = f"{logits.dtype} of shape {logits.shape}" if isinstance(logits, np.ndarray) else type(logits).__name__
        raise ParameterError(f"logits must be float32 of shape (n_vocab,), got {got}", got=got)
    check_largest(np.maximum.reduce(logits))
    return logits


def forbid(logits: Logits, constraint: Constraint) -> None:
    """Makes the logits of tokens that ``constraint`` does not allow -inf.  Raises ParameterError for a wrong mask."""
    allowed = _checked_mask(constraint.allowed())
    known = min(len(allowed), len(logits))
    np.putmask(logits[:known], ~allowed[:known], -np.inf)
    logits[known:] = -np.inf


def _checked_mask(allowed: Any) -> npt.NDArray[np.bool_]:
    """The result of ``allowed()``.  Raises ParameterError if it is not an array of booleans."""
    if not isinstance(allowed, np.ndarray) or allowed.dtype != np.bool_ or allowed.ndim != 1:
        wanted = "an array of bool of shape (n_vocab,)"
        raise ParameterError(
            f"allowed() of the constraint must return {wanted}, got {short_repr(allowed)}", got=allowed, wanted=wanted
        )
    return allowed


def check_largest(largest: np.float32) -> None:
    """Raises LogitsError if the largest logit is NaN, infinite, or -inf."""
    if not -np.inf < largest < np.inf:
        raise LogitsError(
            "the logits have NaN or infinity, or all are -inf: the model's computation failed",
            got=float(largest),
            wanted="numbers, or some -inf",
        )


def _last(history: Sequence[int], count: int, n_vocab: int) -> npt.NDArray[np.integer]:
    """The last ``count`` tokens as an array; -1: all.  Raises ParameterError for a value that is not a token id."""
    if not isinstance(history, (Sequence, np.ndarray)):
        wanted = "a sequence of token ids"
        raise ParameterError(f"history must be {wanted}, got {short_repr(history)}", got=history, wanted=wanted)
    found = history if count < 0 else history[max(len(history) - count, 0) :]
    return token_ids(found, n_vocab, "history") if len(found) else np.zeros(0, np.int64)


def _forbidden() -> ParameterError:
    return ParameterError("no token can be chosen: logit_bias or the grammar forbids all of them")
