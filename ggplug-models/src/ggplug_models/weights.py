"""A model's weights by name, each with the extents that the architecture gives it."""

from __future__ import annotations

from ggplug.errors import ModelError
from ggplug.tensor import Context, Tensor


class Weights:
    """The tensors of a file whose names begin with ``prefix``: ``weights("attn_q.weight", n_in, n_out)``.

    What is missing, or has other extents, raises ModelError, which names the tensor with what was wanted and found.
    """

    def __init__(self, tensors: Context, architecture: str, prefix: str = "") -> None:
        self.tensors = tensors
        self.architecture = architecture
        self.prefix = prefix

    def __contains__(self, name: str) -> bool:
        return self.prefix + name in self.tensors

    def __call__(self, name: str, *ne: int) -> Tensor:
        """The tensor with the extents ``ne``, innermost first; -1 stands for any number, of at least one."""
        name = self.prefix + name
        tensor = self.tensors.get(name)
        wanted = ne + (1,) * (4 - len(ne))
        if tensor is None:
            raise ModelError(
                f"the file has no tensor {name!r}, of ne {_extents(wanted)}, which {self.architecture} needs",
                got=None, wanted=wanted,
            )  # fmt: skip
        if not all(want in (have, -1) and have for want, have in zip(wanted, tensor.ne, strict=True)):
            raise ModelError(
                f"tensor {name!r} has ne {_extents(tensor.ne)}, the metadata asks for {_extents(wanted)}",
                tensor=tensor, got=tensor.ne, wanted=wanted,
            )  # fmt: skip
        return tensor

    def optional(self, name: str, *ne: int) -> Tensor | None:
        """The same, or None where the file has no such tensor."""
        return self(name, *ne) if name in self else None

    def block(self, number: int) -> Weights:
        """Those of a block of the model."""
        return Weights(self.tensors, self.architecture, f"{self.prefix}blk.{number}.")


def _extents(ne: tuple[int, ...]) -> str:
    return f"({', '.join('any' if extent < 0 else str(extent) for extent in ne)})"
