"""The loop over epochs: learning, evaluation, callbacks, early stop, checkpoints."""

from __future__ import annotations

import contextlib
import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from ggplug.errors import ParameterError
from ggplug.opt.datasets import Dataset
from ggplug.opt.epochs import Epoch
from ggplug.opt.training import Training


def fit(
    training: Training,
    dataset: Dataset,
    epochs: int,
    *,
    batch: int = 32,
    validation: Dataset | None = None,
    callbacks: Sequence[Callable[[Training, Epoch], bool | None]] = (),
    patience: int = 0,
    checkpoint: str | Path | None = None,
    seed: int = 0,
    silent: bool = False,
) -> list[Epoch]:
    """Trains until ``epochs`` epochs are done, those before included, and returns what is known of all (ggml_opt_fit).

    Each epoch learns from all batches, in an order that follows from ``seed`` and the epoch's number; so a training
    that is continued from a checkpoint is the same, bit for bit, as one without a break.  ``validation``: evaluated
    after each epoch, in batches of that size.  ``callbacks``: called with the epoch then; one that returns True ends
    the training.  ``patience``: ends it if the validation loss has not fallen below its minimum for so many epochs; a
    NaN is no fall.  0: never.  ``checkpoint``: a file to write after each epoch.  ``silent``: otherwise progress is
    drawn on standard error while that is a terminal: the epoch, its batches, their mean loss so far, and the time left.

    Raises TrainingError if a loss is NaN or infinite, or with ``checkpoint`` a parameter after an epoch; the checkpoint
    is that of the epoch before.  ParameterError for ``patience`` without ``validation``, an empty ``batch``, a negative
    ``seed``.
    """
    if batch < 1 or seed < 0:
        raise ParameterError(
            f"batch must be at least 1, and seed at least 0, got {batch} and {seed}", got=(batch, seed)
        )
    if patience < 0 or (patience and validation is None):
        raise ParameterError(f"patience must be 0, or positive with a validation dataset, got {patience}", got=patience)
    for number in range(len(training.epochs), epochs):
        start = time.perf_counter()
        losses, learned = [], 0
        with _drawn(f"epoch {number + 1}/{epochs}", -(-len(dataset) // batch), silent) as show:
            for data, labels in dataset.batches(batch, dataset.order(seed, number)):
                losses.append(training.step(data, labels) * len(data))
                learned += len(data)
                show(f"loss {math.fsum(losses) / learned:.4f}")
            evaluated = None if validation is None else training.evaluate(validation, batch)
        loss, accuracy = (None, None) if evaluated is None else evaluated
        seconds = time.perf_counter() - start
        epoch = Epoch(number + 1, math.fsum(losses) / max(1, len(dataset)), loss, accuracy, seconds)
        training.epochs.append(epoch)
        if checkpoint is not None:
            training.save(checkpoint)
        ended = [callback(training, epoch) is True for callback in callbacks]
        if any(ended) or _without_progress(training.epochs, patience):
            break
    return training.epochs


@contextlib.contextmanager
def _drawn(title: str, batches: int, silent: bool) -> Iterator[Callable[[str], None]]:
    """A function to call after each batch with what is known then, which is drawn with a bar."""
    if silent or sys.stderr is None or not sys.stderr.isatty():
        yield lambda known: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn

    from ggplug.display import bars

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with bars.bar(*columns) as bar:
        task = bar.add_task(title, total=batches)
        yield lambda known: bar.update(task, advance=1, description=f"{title}, {known}")


def _without_progress(epochs: Sequence[Epoch], patience: int) -> bool:
    found = [each.validation_loss for each in epochs]
    losses = [math.inf if each is None or math.isnan(each) else each for each in found]
    return 0 < patience < len(losses) and min(losses[-patience:]) >= min(losses[:-patience])
