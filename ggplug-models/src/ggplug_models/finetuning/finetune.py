"""Finetunes a language model: from texts to a file with an adapter, or with the trained model."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from ggplug import opt
from ggplug.errors import ParameterError
from ggplug.system.files import check_target
from ggplug_models.checks.arguments import number, whole
from ggplug_models.checks.ids import token_ids
from ggplug_models.finetuning.texts import Learned, Texts, hold_out
from ggplug_models.finetuning.training import LoraTraining, WeightTraining
from ggplug_models.networks.decoder import Decoder

CONTEXT = 512
"""Default number of tokens of a text that are read, if the model supports that context length."""


class Finetuned(NamedTuple):
    """What :func:`finetune` returns.

    ``before``: the loss of what was held out, before the first epoch; None if nothing was, or a checkpoint was read.
    ``epochs``: what is known of all epochs.  ``cut``: how many tokens that would be learned lie after the context.
    """

    before: float | None
    epochs: list[opt.Epoch]
    cut: int


def finetune(
    model: Decoder,
    texts: Sequence[Learned],
    out: str | os.PathLike[str],
    *,
    full: bool = False,
    rank: int = 8,
    alpha: float = 16.0,
    targets: Sequence[str] = (),
    n_ctx: int | None = None,
    epochs: int = 1,
    batch: int = 4,
    period: int = 1,
    learning_rate: float | None = None,
    clip: float = 1.0,
    held_out: float = 0.05,
    checkpoint: str | os.PathLike[str] | None = None,
    seed: int = 0,
    begun: Callable[[float | None], object] | None = None,
    callbacks: Sequence[Callable[[opt.Training, opt.Epoch], bool | None]] = (),
    silent: bool = False,
) -> Finetuned:
    """Trains a LoRA adapter for a language model, or with ``full`` the model's weights, and writes it to ``out``.

    ``model``: loaded without packing, as ``load(path, pack=False)``.  ``texts``: of :func:`.read_learned`.  Those of
    which all is learned are read in pieces of ``n_ctx`` tokens, of others only the beginning; by default 512 tokens,
    or the model's context length if that is smaller.  ``rank``, ``alpha``, ``targets``: see :class:`.LoraTraining`
    and :class:`.WeightTraining`.

    ``learning_rate``: of AdamW; it rises in the first twentieth of the steps, and then falls to a tenth along half a
    cosine.  By default 2e-4 for an adapter and 2e-5 for weights.  ``held_out``: how many of the texts are evaluated
    and not learned from, from 0 to 1.  ``checkpoint``: a file that is written after each epoch; if it is there, the
    training goes on from it.  ``begun``: called before the first epoch with the loss of what is held out, or None.
    Others: see :func:`ggplug.opt.fit`.

    Raises ParameterError, also if there is nothing to learn; TrainingError if the loss is no longer finite, and what
    :meth:`~ggplug.opt.Training.load` raises for a checkpoint; OSError.
    """
    n_ctx = min(CONTEXT, model.n_ctx) if n_ctx is None else whole("n_ctx", n_ctx, 1, model.n_ctx)
    held_out = number("held_out", held_out, 0, 1)
    epochs, batch, period = whole("epochs", epochs, 1), whole("batch", batch, 1), whole("period", period, 1)
    rate = number("learning_rate", (2e-5 if full else 2e-4) if learning_rate is None else learning_rate, 0)
    kept_in = None if checkpoint is None else Path(checkpoint)
    check_target(out, [*model.paths, *([] if kept_in is None else [kept_in])])
    read = [piece for each in texts for piece in (each.pieces(n_ctx) if all(each.learned) else [each.cut(n_ctx)])]
    read = [each for each in read if len(each)]
    for n, each in enumerate(read):
        token_ids(each.ids, model.n_vocab, f"texts to learn, piece {n}")
    if not read:
        raise ParameterError(f"the texts have no token to learn within {n_ctx} tokens", got=len(texts))
    kept, others = hold_out(read, held_out, seed)
    if not kept:
        raise ParameterError(f"all {len(read)} texts would be held out", got=held_out, remedy="hold out a smaller part")
    train, validation = Texts(kept, n_ctx), Texts(others, n_ctx) if others else None
    steps = epochs * -(-len(train) // batch) // period
    optimiser = opt.AdamW(opt.cosine(rate, steps, warmup=steps // 20, last=rate / 10))
    chosen = {"targets": targets} if targets else {}
    with model.call():
        made: LoraTraining | WeightTraining
        if full:
            made = WeightTraining(model, optimiser=optimiser, period=period, clip=clip, **chosen)
        else:
            made = LoraTraining(model, rank, alpha, optimiser=optimiser, period=period, clip=clip, seed=seed, **chosen)
        with made as training:
            if kept_in is not None and kept_in.exists():
                training.load(kept_in)
            before = None
            if not training.epochs:
                before = None if validation is None else training.evaluate(validation, batch).loss
                if begun is not None:
                    begun(before)
            done = opt.fit(
                training,
                train,
                epochs,
                batch=batch,
                validation=validation,
                callbacks=callbacks,
                checkpoint=kept_in,
                seed=seed,
                silent=silent,
            )
            training.write(out)
    return Finetuned(before, done, sum(map(len, texts)) - sum(map(len, read)))
