"""EAGLE 3 (arXiv:2503.01840): heads in files of their own, which read the inputs of three blocks of a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

import ggplug as gg
from ggplug.backend import Device
from ggplug.errors import ModelError
from ggplug.graph import Graph
from ggplug.scheduler import Feed
from ggplug.tensor import Context, Tensor
from ggplug.types import RopeMode
from ggplug_models.generation.drafts import check_same_vocabulary
from ggplug_models.metadata.hyperparameters import Hyperparameters
from ggplug_models.metadata.values import Values
from ggplug_models.networks.decoder import Decoder
from ggplug_models.networks.heads import Head
from ggplug_models.networks.model import Model, architecture
from ggplug_models.networks.network import Block
from ggplug_models.networks.transformer import Transformer
from ggplug_models.state.batching import in_steps
from ggplug_models.state.sample_graph import sample_graph
from ggplug_models.state.steps import VECTORS, Step
from ggplug_models.tokenizers.vocabulary import TOKENS, token_texts

Floats = npt.NDArray[np.float32]

MADE_FOR = "use the head that was made for this model"


class HeadAloneError(ModelError, AttributeError):
    """A head was used without the model that it guesses for."""


@architecture("eagle3")
class Eagle3(Transformer):
    """The weights of a head.  Its one block reads the embedding of a token together with a vector of the one before.

    It may have its own table of embeddings, and its own output matrix for a part of the vocabulary; else it uses those
    of the model that it guesses for.  It computes nothing without one: :meth:`head` joins them, and what other models
    have besides raises HeadAloneError.
    """

    KIND = "an EAGLE 3 head"
    USE = "it guesses tokens for the model that it was made for: ggplug run MODEL.gguf --draft HEAD.gguf"

    rope_mode = RopeMode.NORMAL

    def __init__(self, weights: Context, metadata: Mapping[str, Any], devices: Sequence[Device]) -> None:
        Model.__init__(self, weights, metadata, devices)  # a network has a table of embeddings; this one need not
        self.patches = ()
        self.read(self.hyperparameters)

    def read(self, hp: Hyperparameters) -> None:
        super().read(hp)
        if self.n_layer != 1:
            raise hp.refused("block_count", "1")
        size = np.size(hp.values.get(f"{hp.prefix}target_layers", ()))
        self.target_layers = [int(each) for each in hp.integers("target_layers", length=size or 3)]
        self.target_width = hp.integer("target_hidden_size")
        self.norm_before_residual = hp.boolean("norm_before_residual", False)
        self.norm_before_fc = hp.boolean("norm_before_fc", False)

    def __getattr__(self, name: str) -> Any:
        raise HeadAloneError(f"an EAGLE 3 head has no {name} of its own", got=name, remedy=self.USE)

    def _alone(self, *_: object, **__: object) -> Any:
        raise HeadAloneError("the nodes of an EAGLE 3 head are in no graph of its own", remedy=self.USE)

    node_names = patch = adapt = steer = _alone

    def sample(self) -> Graph | None:  # type: ignore[override]
        """None: no weights are packed."""
        return None

    def head(self, model: Decoder) -> Head:
        """The head for ``model``, whose devices must include those of the head's weights.  Raises ModelError."""
        return _Eagle3Head(self, model)

    def block(self, x: Tensor, block: Block) -> Tensor:
        """The output for ``x``, the embedding of each token, with the vectors of the step."""
        w, g = block.weights, block.step.vectors(self.n_embd)
        normed = self.norm(w, "attn_norm_2", g)
        y = self.attention(gg.concat(self.norm(w, "attn_norm", x), normed, dim=0), block)
        y, kept = block.outputs(y, normed if self.norm_before_residual else g)
        y = block.named("ffn_inp", y + kept)
        return y + block.named("ffn_out", self.feed_forward(self.norm(w, "ffn_norm", y), block))


class _Eagle3Head(Head):
    def __init__(self, draft: Eagle3, model: Decoder) -> None:
        _check(draft, model)
        layers = ("inp_embd", *(f"blk.{number}.l_out" for number in range(model.n_layer - 1)), VECTORS)
        super().__init__(model, tuple(layers[number] for number in draft.target_layers), draft.kinds)
        self.draft = draft
        self.cache_on, self.device_of = draft.cache_on, draft.device_of
        self.tokens: npt.NDArray[Any] | None = None
        """The token of each logit, if those are of a part of the vocabulary."""
        if "d2t" in draft.w:
            self.tokens = np.array(draft.w("d2t", -1).numpy())
            if self.tokens.min() < 0 or self.tokens.max() >= model.n_vocab:
                raise ModelError(f"the tensor 'd2t' of {draft!r} must have tokens from 0 to {model.n_vocab - 1}")
        self._feeds = {1: self._feed(1)}
        sample_graph(self)  # so that a file without a tensor that it needs is refused now

    def forward(self, step: Step) -> Tensor:
        owner = self.draft if "token_embd.weight" in self.draft.w else self.model
        table = owner.w("token_embd.weight", self.draft.n_embd, self.n_vocab)
        return self.draft.output_of(0, gg.get_rows(table, step.tokens), step, is_last=True)

    def results(self, x: Tensor) -> tuple[Tensor, Tensor]:
        normed = self.draft.norm(self.draft.w, "output_norm", x)
        n = self.n_vocab if self.tokens is None else len(self.tokens)
        if "output.weight" not in self.draft.w:
            return self.model.scores(normed), x
        return gg.mul_mat(self.draft.w("output.weight", self.draft.n_embd, n), normed), x

    def encoded(self, values: Sequence[Floats]) -> Floats:
        found = np.concatenate(values, axis=-1, dtype=np.float32)
        n = in_steps(len(found))
        with self.locked():
            feed = self._feeds.get(n) or self._feeds.setdefault(n, self._feed(n))
            return feed([np.pad(found, ((0, n - len(found)), (0, 0)))])[0][: len(found)]

    def _feed(self, n: int) -> Feed:
        """Computes the vectors of ``n`` tokens from the inputs of the blocks."""
        draft = self.draft
        width = len(self.names) * draft.target_width
        joined = gg.new_tensor(gg.F32, (width, n), "layers").set_input()
        x = draft.norm(draft.w, "enc.output_norm", joined) if draft.norm_before_fc else joined
        x = gg.mul_mat(draft.w("fc.weight", width, draft.n_embd), x).set_output()
        return Feed(self.scheduler, Graph(x, name=f"eagle3 {n}"), [joined], [x])

    def token(self, number: int) -> int:
        return number if self.tokens is None else int(self.tokens[number])


def _check(draft: Eagle3, model: Decoder) -> None:
    """Raises ModelError if a head was not made for a model, or if the model does not use its devices."""
    if draft.target_width != model.n_embd or not all(0 <= each <= model.n_layer for each in draft.target_layers):
        listed = ", ".join(map(str, draft.target_layers))
        raise ModelError(
            f"the head reads vectors of {draft.target_width} elements of the layers {listed}; the model's have "
            f"{model.n_embd}, and it has {model.n_layer} layers",
            got=draft.target_width,
            wanted=model.n_embd,
            remedy=MADE_FOR,
        )
    if TOKENS in draft.metadata:
        texts = token_texts(Values(draft.metadata)), model.tokenizer.vocabulary.texts
        check_same_vocabulary(*texts, "the head", MADE_FOR)
    others = [device for device in draft.devices if device not in model.devices]
    if others:
        raise ModelError(
            f"the head is on {others[0].name}, which the model does not use",
            got=others[0],
            remedy="load the head with devices=model.devices",
        )
