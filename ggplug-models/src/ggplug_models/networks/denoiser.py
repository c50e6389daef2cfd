"""Language models that write the tokens of a text in any order: diffusion over masked tokens (arXiv:2502.09992)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import takewhile

import numpy as np
import numpy.typing as npt

from ggplug.tensor import Tensor
from ggplug_models.checks.arguments import whole
from ggplug_models.layers.linear import output
from ggplug_models.metadata.hyperparameters import Hyperparameters
from ggplug_models.metadata.values import Values
from ggplug_models.networks.encoder import Encoder
from ggplug_models.tokenizers import Tokenizer, load_tokenizer

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]

MASK, SHIFTS = "tokenizer.ggml.mask_token_id", "diffusion.shift_logits"


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

    def generate(self, text: str, max_tokens: int, *, steps: int | None = None, block: int | None = None) -> str:
        """The text after ``text``, up to its first end token; see :meth:`generate_ids`."""
        found = self.generate_ids(self.vocabulary.prompt(text), max_tokens, steps=steps, block=block)
        ends = self.vocabulary.ends
        return self.vocabulary.decode(takewhile(lambda token: token not in ends, found), skip_special=True)

    def generate_ids(
        self, prompt: Sequence[int], max_tokens: int, *, steps: int | None = None, block: int | None = None
    ) -> list[int]:
        """The ``max_tokens`` tokens after a prompt.

        They all are masked at first.  Each step computes the whole text, and writes those tokens of whose best
        candidate the model is most certain.  ``steps``: how often the text is computed; by default, once for a token.
        ``block``: so many tokens are complete before the next ones are written; by default, all are one block.

        Raises ParameterError if the context length is exceeded; ModelError if the file names no mask; FreedError.
        """
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
                places, chosen = self._certain(tokens, open_places, size // of_block + (step < size % of_block))
                tokens[places], written[places] = chosen, True
        return [int(each) for each in tokens[len(prompt) :]]

    def _certain(self, tokens: Ints, places: Ints, count: int) -> tuple[Ints, Ints]:
        """The ``count`` places of whose best candidates the model is most certain, and these candidates."""
        logits = self.logits(tokens.tolist())[np.maximum(places - self.shifts, 0)]
        logits[:, self.mask] = -np.inf
        best = logits.argmax(axis=1)
        powers = np.exp(logits - logits.max(axis=1, keepdims=True))
        certain = np.argsort(powers.sum(axis=1), kind="stable")[:count]  # the best candidate has the power 1
        return places[certain], best[certain]
