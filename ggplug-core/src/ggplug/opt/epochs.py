"""What is known of the epochs of a training, also in files."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ggplug.errors import ModelError


class Epoch(NamedTuple):
    """What is known of an epoch: its number from 1 on, the mean loss of its batches, and the evaluation after it."""

    number: int
    loss: float
    validation_loss: float | None
    accuracy: float | None
    seconds: float


_KEY = "training.epochs."


def as_metadata(epochs: Sequence[Epoch]) -> dict[str, list[float]]:
    """Epochs as metadata of a file: an array for each field, with NaN for what is not known."""
    if not epochs:
        return {}
    columns = zip(Epoch._fields, zip(*epochs, strict=True), strict=True)
    return {_KEY + name: [math.nan if each is None else float(each) for each in column] for name, column in columns}


def from_metadata(metadata: Mapping[str, Any]) -> list[Epoch]:
    """The epochs that metadata has.  Raises ModelError for what :func:`as_metadata` does not write."""
    columns = [metadata.get(_KEY + name, []) for name in Epoch._fields]
    arrays = [np.asarray(column) for column in columns]
    if len({each.shape for each in arrays}) > 1 or any(each.dtype.kind != "f" or each.ndim != 1 for each in arrays):
        raise ModelError(f"{_KEY}* are not arrays of one number for each epoch", wanted=Epoch._fields)
    if not np.isfinite(arrays[0]).all():
        raise ModelError(f"{_KEY}number has a number that is not finite", got=columns[0])
    found = []
    for number, loss, *evaluated, seconds in zip(*columns, strict=True):
        validation_loss, accuracy = (None if math.isnan(each) else each for each in evaluated)
        found.append(Epoch(int(number), loss, validation_loss, accuracy, seconds))
    return found
