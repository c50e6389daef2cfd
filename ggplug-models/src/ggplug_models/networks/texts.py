"""Models that compute vectors and scores of whole texts: embeddings, and how relevant a text is for a query."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import chain

import numpy as np
import numpy.typing as npt

from ggplug.errors import ParameterError
from ggplug_models.checks.arguments import check_sequence, whole
from ggplug_models.embedding.pooling import Pooling
from ggplug_models.embedding.vectors import check_texts, normalized
from ggplug_models.metadata.hyperparameters import Hyperparameters
from ggplug_models.metadata.values import short_repr
from ggplug_models.networks.network import Network
from ggplug_models.networks.ranking import DENSE, OUT, Ranker
from ggplug_models.tokenizers.encoders import TextTokenizer, TextTooLongError, VocabularyTokenizer
from ggplug_models.tokenizers.long_text import LongText, pieces_of

Floats = npt.NDArray[np.float32]

PROMPT, DIMENSIONS, LONGEST = "embedding.prompt.", "embedding.dimensions", "embedding.max_length"
"""Keys of what is put before texts, followed by a name; of the lengths to which vectors may be cut; of the number of
tokens to which texts are cut, if that is less than the context."""


class TextModel(Network):
    """A model that computes vectors and scores of texts.

    ``labels``: what the results of the file's classifier stand for; empty if it does not say.

    ``pooling``: how the vectors of a text's tokens become one; it can be set.  ``prompts``: what is put before a text,
    by the name of its purpose, such as ``query``.  ``dimensions``: the numbers of elements to which the model's vectors
    may be cut (arXiv:2205.13147).  Both are as the file says; most files say nothing.
    """

    pooling: Pooling
    _longest: int | None

    def read(self, hp: Hyperparameters) -> None:
        super().read(hp)
        beginning = f"{hp.prefix}{PROMPT}"
        names = [key.removeprefix(beginning) for key in hp.values if key.startswith(beginning)]
        self.prompts = {name: hp.text(f"{PROMPT}{name}") for name in names}
        self.labels = tuple(hp.texts("classifier.output_labels", ()))
        self._longest = hp.integer(LONGEST, None)
        found = hp.values.get(f"{hp.prefix}{DIMENSIONS}")
        listed = () if found is None else hp.integers(DIMENSIONS, length=np.size(found))
        self.dimensions = tuple(sorted(map(int, listed)))
        if any(not 0 < each <= self.n_embd for each in self.dimensions):
            raise hp.refused(DIMENSIONS, f"integers from 1 to {self.n_embd}")

    @property
    def text_length(self) -> int:
        """The number of tokens to which texts are cut: the context, or less if the file says so."""
        return min(self.n_ctx, self._longest or self.n_ctx)

    @property
    def text_tokenizer(self) -> TextTokenizer | VocabularyTokenizer:
        """Makes token ids of whole texts."""
        raise NotImplementedError

    def embed(
        self,
        texts: Sequence[str | LongText],
        *,
        prompt: str | None = None,
        dimensions: int | None = None,
        batch: int = 32,
        normalize: bool = True,
        progress: Callable[[int], None] | None = None,
    ) -> Floats:
        """One vector per text: float32 of shape ``(len(texts), n_embd)``, in the order of ``texts``.

        A text longer than :attr:`text_length` is truncated; a :class:`LongText` is read only as far as needed.
        ``prompt``: the name of one of :attr:`prompts`, which is put before each text.  ``dimensions``: the vectors are
        cut to so many elements, before they are scaled; only some models are made for it.  ``batch``: maximum number of
        texts computed together.  ``normalize``: scale the vectors to length 1.  ``progress(n)``: called when ``n`` more
        texts are done; an exception that it raises ends the call.  Raises ParameterError; ModelError if the tokenizer
        fails; FreedError; and what a LongText's callable raises.
        """
        texts = self._prompted(texts, prompt)
        length = self.vector_length(dimensions)
        with self.call():
            ids = self.text_tokenizer.encode(texts)
            without = next((number for number, each in enumerate(ids) if not len(each)), None)
            if without is not None:
                raise ParameterError(
                    f"texts[{without}] has no tokens: it is empty, or the tokenizer drops all that it has",
                    got=short_repr(texts[without]),
                    remedy="leave such texts out",
                )
            found = self.embed_ids(ids, batch=batch, normalize=False, progress=progress)[:, :length]
        return normalized(found) if normalize else found

    def _prompted(self, texts: Sequence[str | LongText], name: str | None) -> Sequence[str | LongText]:
        """The texts, checked, with the prompt of this name before each."""
        check_texts(texts)
        if name is None:
            return texts
        if name not in self.prompts:
            known = ", ".join(sorted(self.prompts)) or "no prompts"
            raise ParameterError(f"prompt {short_repr(name)} is unknown; the model's file has {known}", got=name)
        return [_behind(self.prompts[name], text) for text in texts]

    def vector_length(self, dimensions: int | None) -> int:
        """The number of elements of vectors that are cut to ``dimensions``.  Raises ParameterError."""
        if dimensions is None:
            return self.n_embd
        found = whole("dimensions", dimensions, 1, self.n_embd)
        if self.dimensions and found not in (*self.dimensions, self.n_embd):
            listed = ", ".join(map(str, self.dimensions))
            raise ParameterError(f"dimensions must be one of {listed} or {self.n_embd}, got {found}", got=found)
        return found

    def token_vectors(self, texts: Sequence[str | LongText], *, prompt: str | None = None) -> list[Floats]:
        """The vectors of the tokens of each text, not pooled and not scaled; raises as :meth:`embed` does."""
        texts = self._prompted(texts, prompt)
        with self.call():
            return [self.hidden_states(ids) for ids in self.text_tokenizer.encode(texts)]

    def hidden_states(self, ids: Sequence[int]) -> Floats:
        """The vector of each token of one text, given as token ids: float32 of shape ``(len(ids), n_embd)``."""
        raise NotImplementedError

    def embed_ids(
        self,
        ids: Sequence[Sequence[int]],
        *,
        batch: int = 32,
        normalize: bool = True,
        progress: Callable[[int], None] | None = None,
    ) -> Floats:
        """One vector for each text, given as token ids."""
        raise NotImplementedError

    def pair(self, query: str, document: str, instruction: str | None = None) -> list[int]:
        """The token ids of a query together with a document.  Raises as :meth:`rank` does."""
        raise NotImplementedError

    def classifier_activation(self, x: Floats) -> Floats:
        """The activation of the classifier's first layer."""
        return np.asarray(np.tanh(x), np.float32)

    def scored(self, x: Floats) -> Floats:
        """The scores for each label, from the results of the classifier's last layer, ``(n, n_out)``: the same."""
        return x

    @property
    def ranks(self) -> bool:
        """Whether the model is a reranker: whether its file has a classifier."""
        return self.pooling is Pooling.RANK and any(f"{name}.weight" in self.w for name in (DENSE, OUT))

    def rank(
        self,
        query: str,
        texts: Sequence[str],
        *,
        instruction: str | None = None,
        label: str | int | None = None,
        batch: int = 32,
        progress: Callable[[int], None] | None = None,
    ) -> Floats:
        """How relevant each text is for a query: float32 ``(len(texts),)``, higher for more relevant ones.

        The range of the scores is the model's: probabilities of language models, any numbers of most encoders.
        ``instruction``: what a relevant text does, for models whose prompt says it.  ``label``: one of :attr:`labels`,
        or the number of a result, whose score is meant; a classifier with several results needs it, unless one of them
        is labelled ``yes``.  ``batch``, ``progress``: see :meth:`embed_ids`.

        Raises ParameterError, also for a model that is no reranker; TextTooLongError if the query and a text are longer
        than the context length together; ModelError if the tokenizer fails; FreedError.
        """
        if not isinstance(query, str):
            raise ParameterError(f"query must be a string, got {short_repr(query)}", got=query)
        if isinstance(texts, str):
            raise ParameterError("rank takes a sequence of texts, got one string; put it into a list", got=type(texts))
        check_sequence(texts, "texts")
        for position, text in enumerate(texts):
            if not isinstance(text, str):
                raise ParameterError(f"texts[{position}] must be a string, got {type(text).__name__}", got=type(text))
        with self.call():
            ranker = self.ranker
            ranker.number(label)  # a label that there is not is refused before anything is computed
            pairs = self.pairs(query, texts, instruction)
            return ranker.scores(pairs, label=label, batch=batch, progress=progress)

    def classify(
        self,
        texts: Sequence[str | LongText],
        *,
        batch: int = 32,
        progress: Callable[[int], None] | None = None,
    ) -> Floats:
        """The results of the classifier for each text alone, logits: float32 ``(len(texts), n_out)``, see ``labels``.

        Long texts are truncated, as by :meth:`embed`.  Raises as :meth:`rank` does.
        """
        check_texts(texts)
        with self.call():
            return self.ranker.outputs(self.text_tokenizer.encode(texts), batch=batch, progress=progress)

    def pairs(self, query: str, texts: Sequence[str], instruction: str | None = None) -> list[list[int]]:
        """The token ids of a query together with each text, as :meth:`pair` makes them.

        Raises TextTooLongError with the position of a text that is too long, ModelError.
        """
        found: list[list[int]] = []
        for text in texts:
            try:
                found.append(self.pair(query, text, instruction))
            except TextTooLongError as error:
                got, wanted, position = error.got, error.wanted, len(found)
                what = f"query and texts[{position}] have {got} tokens together; the model reads at most {wanted}"
                raise TextTooLongError(what, got=got, wanted=wanted, position=position) from None
        return found

    @cached_property
    def ranker(self) -> Ranker:
        """The classifier.  Raises ParameterError if there is none, ModelError for wrong weights."""
        if not self.ranks:
            raise ParameterError(
                f"{self.architecture} model: its file has no classifier (cls.*), so it is no reranker",
                got=self.architecture,
            )
        return Ranker(self)


def _behind(prompt: str, text: str | LongText) -> str | LongText:
    """A text with a prompt before it."""
    return prompt + text if isinstance(text, str) else LongText(lambda: chain([prompt], pieces_of(text)))
