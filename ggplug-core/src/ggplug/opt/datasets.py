"""Datasets: datapoints with labels, in shards whose order is shuffled for each epoch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ggplug.errors import ParameterError, ShapeError

Array = npt.NDArray[Any]


class Batch(NamedTuple):
    """Some datapoints and their labels."""

    data: Array
    labels: Array | None


class Dataset:
    """Datapoints and labels, each an array with one of them per index of its first axis (ggml_opt_dataset_init).

    Floats become float32, integers int32, in which they must fit.  ``shard``: so many consecutive datapoints stay
    together when datapoints are shuffled.  Raises ShapeError if there is not one label for each datapoint,
    ParameterError if they are no whole number of shards, for values that are no real numbers or are masked, and for one
    that does not fit.
    """

    def __init__(self, data: Any, labels: Any = None, *, shard: int = 1) -> None:
        self.data = _plain(data)
        self.labels = None if labels is None else _plain(labels)
        self.shard = shard
        if not self.data.ndim or (self.labels is not None and self.labels.shape[:1] != self.data.shape[:1]):
            shapes = self.data.shape, None if self.labels is None else self.labels.shape
            raise ShapeError(f"a dataset needs a label for each datapoint, got the shapes {shapes}", got=shapes)
        if shard < 1 or len(self) % shard:
            raise ParameterError(f"{len(self)} datapoints are no whole number of shards of {shard}", got=shard)

    def __len__(self) -> int:
        return len(self.data)

    def split(self, count: int) -> tuple[Dataset, Dataset]:
        """The first ``count`` datapoints, and the others."""
        first, rest = (
            Dataset(self.data[part], None if self.labels is None else self.labels[part], shard=self.shard)
            for part in (slice(count), slice(count, None))
        )
        return first, rest

    def order(self, seed: int, epoch: int) -> Array:
        """The datapoints' numbers in the order of an epoch: the same for the same seed (ggml_opt_dataset_shuffle)."""
        shards = np.random.default_rng((seed, epoch)).permutation(len(self) // self.shard)
        found: Array = (shards[:, np.newaxis] * self.shard + np.arange(self.shard)).reshape(-1)
        return found

    def batches(self, size: int, order: Array | None = None) -> Iterator[Batch]:
        """Batches of ``size`` datapoints in this order; the last one may be smaller (ggml_opt_dataset_get_batch)."""
        if size < 1:
            raise ParameterError(f"a batch has 1 datapoint or more, got {size}", got=size)
        numbers = np.arange(len(self)) if order is None else order
        for start in range(0, len(self), size):
            chosen = numbers[start : start + size]
            yield Batch(self.data[chosen], None if self.labels is None else self.labels[chosen])


def _plain(values: Any) -> Array:
    array = np.asarray(values)
    if array.dtype.kind not in "biuf" or np.ma.is_masked(values):
        what = "masked values" if array.dtype.kind in "biuf" else f"{array.dtype} values"
        raise ParameterError(f"a dataset has real numbers, got {what}", got=array.dtype)
    if array.dtype.kind not in "iu":
        with np.errstate(over="ignore"):
            floats = np.ascontiguousarray(array, np.float32)
        outside = array[np.isinf(floats) & np.isfinite(array)]
        if outside.size:
            raise ParameterError(f"floats of a dataset must fit into float32, got {outside[0]}", got=float(outside[0]))
        return floats
    if not np.can_cast(array.dtype, np.int32):
        limits = np.iinfo(np.int32)
        outside = array[(array < limits.min) | (array > limits.max)]
        if outside.size:
            raise ParameterError(f"integers of a dataset must fit into int32, got {outside[0]}", got=int(outside[0]))
    return np.ascontiguousarray(array, np.int32)
