"""Language models that write the tokens of a text in any order: diffusion over masked tokens (arXiv:2502.09992)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import takewhile
from typing import TypedDict, Unpack

import numpy as np
import numpy.typing as npt

from ggplug.errors import ParameterError
from ggplug.tensor import Tensor
from ggplug_models.chat.template import ChatTemplate
from ggplug_models.checks.arguments import check_callable, check_progress, whole
from ggplug_models.generation.loop import greedy
from ggplug_models.layers.linear import output
from ggplug_models.metadata.hyperparameters import Hyperparameters
from ggplug_models.metadata.values import Values, short_repr
from ggplug_models.networks.encoder import Encoder
from ggplug_models.sampling.sampler import Chooses, Sampler
from ggplug_models.tokenizers import Tokenizer, load_tokenizer

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]

MASK, SHIFTS = "tokenizer.ggml.mask_token_id", "diffusion.shift_logits"


LARGEST_SEED = 2**64 - 1


def _probability(probabilities: Floats, chosen: Ints) -> Floats:
    return probabilities[np.arange(len(chosen)), chosen]


def _entropy(probabilities: Floats, chosen: Ints) -> Floats:
    logarithms = np.log(np.where(probabilities > 0, probabilities, 1))
    found: Floats = (probabilities * logarithms).sum(axis=1)
    return found


def _margin(probabilities: Floats, chosen: Ints) -> Floats:
    second, first = np.partition(probabilities, -2, axis=1)[:, -2:].T
    return np.asarray(first - second)


ORDERS: dict[str, Callable[[Floats, Ints], Floats] | None] = {
    "probability": _probability,
    "entropy": _entropy,
    "margin": _margin,
    "random": None,
}
"""What decides which tokens are written first, by name: the largest probability of the chosen token, the least entropy,
the largest distance of the best probability from the next, or chance."""


class Writing(TypedDict, total=False):
    """Options of the methods of a :class:`Denoiser` that generate.

    ``steps``: how often the text is computed; by default, once for a token.  ``block``: so many tokens are complete
    before the next ones are written; by default, all are one block.  ``choose``: chooses each token, such as a
    :class:`~ggplug_models.sampling.Sampler`; by default the most probable one.  ``order``: one of :data:`ORDERS`.
    ``seed``: of the order ``random``.  ``progress(n)``: called when ``n`` more tokens are written.
    """

    steps: int | None
    block: int | None
    choose: Chooses
    order: str
    seed: int | None
    progress: Callable[[int], None] | None


class Denoiser(Encoder):
    """A language model that predicts masked tokens from those before and after them.

    ``shifts``: whether the logits at a position are for the token after it, as in models that were made from those
    that write from left to right.
    """

    def read(self, hp: Hyperparameters) -> None:
        super().read(hp)
        self.shifts = Values(self.metadata).boolean(SHIFTS, True)

    def hidden(self, x: Tensor) -> Tensor:
        return self.norm(self.w, "output_norm", x)

    def scores(self, x: Tensor) -> Tensor:
        return self.w.named("result_output", output(self.w, x, self.n_vocab))

    @cached_property
    def vocabulary(self) -> Tokenizer:
        """The tokenizer of the file for whole texts of any length.  Raises ModelError."""
        return load_tokenizer(self.metadata)

    @cached_property
    def mask(self) -> int:
        """The id of the token that stands for tokens which are not written yet.  Raises ModelError if there is none."""
        return Values(self.metadata).integer(MASK, at_least=0, at_most=self.n_vocab - 1)

    def logits(self, ids: Sequence[int]) -> Floats:
        """The logits at every position of a text: float32 ``(len(ids), n_vocab)``.

        Raises ParameterError, FreedError.
        """
        checked = self._checked(ids, "ids")
        with self.locked():
            found = self._compute([checked]).scores
            assert found is not None
            logits: Floats = found.numpy()[0, : len(ids)]
        return logits

    @cached_property
    def template(self) -> ChatTemplate:
        """The chat template of the file.  Raises ModelError if there is none."""
        return ChatTemplate.of(self.metadata, self.vocabulary)

    def generate(self, text: str, max_tokens: int, **how: Unpack[Writing]) -> str:
        """The text after ``text``, up to its first end token; see :meth:`generate_ids`."""
        found = self.generate_ids(self.vocabulary.prompt(text), max_tokens, **how)
        ends = self.vocabulary.ends
        return self.vocabulary.decode(takewhile(lambda token: token not in ends, found), skip_special=True)

    def generate_ids(
        self,
        prompt: Sequence[int],
        max_tokens: int,
        *,
        steps: int | None = None,
        block: int | None = None,
        choose: Chooses = greedy,
        order: str = "probability",
        seed: int | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> list[int]:
        """The ``max_tokens`` tokens after a prompt.

        They all are masked at first.  Each step computes the whole text, and writes those tokens of which the model is
        most certain.  See :class:`Writing` for the options.

        Raises ParameterError if the context length is exceeded; ModelError if the file names no mask; FreedError; and
        what ``choose`` raises.
        """
        if order not in ORDERS:
            known = ", ".join(ORDERS)
            raise ParameterError(f"order must be one of {known}, got {short_repr(order)}", got=order, wanted=known)
        check_callable("choose", choose, "a function of the logits and the tokens before, such as a Sampler")
        check_progress(progress)
        if isinstance(choose, Sampler):
            choose.begin(lambda: self.vocabulary)
        random = np.random.default_rng(None if seed is None else whole("seed", seed, 0, LARGEST_SEED))
        count = whole("max_tokens", max_tokens, 1, self.n_ctx - len(prompt))
        steps = count if steps is None else whole("steps", steps, 1, count)
        block = count if block is None else whole("block", block, 1, count)
        tokens = np.array([*prompt, *[self.mask] * count], np.int64)
        written = np.array([True] * len(prompt) + [False] * count)
        for start in range(len(prompt), len(tokens), block):
            size = min(block, len(tokens) - start)
            of_block = max(1, steps * size // count)
            for step in range(of_block):
                open_places = start + np.flatnonzero(~written[start : start + size])
                now = size // of_block + (step < size % of_block)
                logits = self.logits(tokens.tolist())[np.maximum(open_places - self.shifts, 0)]
                logits[:, self.mask] = -np.inf
                texts = (tokens[:place][written[:place]].tolist() for place in open_places)
                chosen = np.array([choose(row, text) for row, text in zip(logits, texts, strict=True)])
                first = self._most_certain(logits, chosen, ORDERS[order], random)[:now]
                tokens[open_places[first]], written[open_places[first]] = chosen[first], True
                if progress is not None:
                    progress(len(first))
        return [int(each) for each in tokens[len(prompt) :]]

    def _most_certain(
        self,
        logits: Floats,
        chosen: Ints,
        certainty: Callable[[Floats, Ints], Floats] | None,
        random: np.random.Generator,
    ) -> Ints:
        """The rows of ``logits`` in the order in which their tokens are to be written; None: at random."""
        if certainty is None:
            return random.permutation(len(chosen))
        powers = np.exp(logits - logits.max(axis=1, keepdims=True))
        return np.argsort(-certainty(powers / powers.sum(axis=1, keepdims=True), chosen), kind="stable")
