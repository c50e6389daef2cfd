"""The kernel of ops that call a Python function, for every device that computes in host memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ggplug.interface.faults import compute_error
from ggplug.interface.walking import Operand
from ggplug.ops.custom import PythonCall
from ggplug.values.described import Named


class _Shown:
    """Shows an array's memory to a function, which may keep it: the memory lives on when its buffer is freed.

    ``read_only``: for good; of an array NumPy lets anybody take the flag back.
    """

    def __init__(self, array: npt.NDArray[Any], memory: object, *, read_only: bool) -> None:
        shown = array.__array_interface__
        self.__array_interface__ = {**shown, "data": (shown["data"][0], read_only)}
        self._kept = array, memory


def _shown(operand: Operand, *, read_only: bool = True) -> npt.NDArray[Any]:
    """An operand's memory; a copy of it where nothing keeps that alive behind the buffer."""
    array, memory = operand.array(), operand.buffer.keeper
    return np.asarray(_Shown(array.copy() if memory is None else array, memory, read_only=read_only))


def call_python(
    op: PythonCall, dst: Operand, *src: Operand | None, device: Named | None = None, n_threads: int = 1
) -> None:
    """Calls the function of a node, which reads and writes the tensors' memory: see :mod:`ggplug.ops.custom`.

    A device over host memory has it in its dictionary, ``kernels = {PythonCall: call_python}``.  ``n_threads``: of the
    device, which bounds the number of parts.  The buffers must be claimed so that Python code may access them
    (:func:`ggplug.sharing.using`).

    Raises ComputeError (of a MemoryError OutOfMemoryError) that names the node, with what the function raised as its
    cause; KeyboardInterrupt and SystemExit go through as they are.
    """
    sources = [_shown(operand) for operand in src if operand is not None]
    result = _shown(dst, read_only=False)
    try:
        # NaN, infinities and what overflows are values like others.
        with np.errstate(all="ignore"):
            op.run(result, sources, n_threads)
        if dst.buffer.keeper is None:
            dst.array()[...] = result
    except Exception as error:
        raise compute_error(device, dst.tensor, error) from error
