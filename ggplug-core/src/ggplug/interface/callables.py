"""The kernel of ops that call a Python function, for every device that computes in host memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ggplug.interface.faults import compute_error
from ggplug.interface.walking import Operand
from ggplug.ops.custom import PythonCall
from ggplug.values.described import Named


class _Exported:
    """Exports an array's memory to a Python function, which may keep it: the memory outlives its buffer.

    ``read_only``: the exported memory cannot be made writable again, unlike a read-only NumPy array.
    """

    def __init__(self, array: npt.NDArray[Any], memory: object, *, read_only: bool) -> None:
        own = array.__array_interface__
        self.__array_interface__ = {**own, "data": (own["data"][0], read_only)}
        self._kept = array, memory


def _exported(operand: Operand, *, read_only: bool = True) -> npt.NDArray[Any]:
    """An array over an operand's memory, or over a copy of it if the memory does not outlive its buffer."""
    array, memory = operand.array(), operand.buffer.keeper
    return np.asarray(_Exported(array.copy() if memory is None else array, memory, read_only=read_only))


def call_python(
    op: PythonCall, dst: Operand, *src: Operand | None, device: Named | None = None, n_threads: int = 1
) -> None:
    """Calls the Python function of a node with arrays over the tensors' memory: see :mod:`ggplug.ops.custom`.

    A device over host memory has it in its dictionary, ``kernels = {PythonCall: call_python}``.  ``n_threads``: of the
    device, the limit of the number of parts.  The caller has claimed the buffers in a way that lets Python code access
    them (:func:`ggplug.sharing.using`).

    Raises ComputeError (for a MemoryError OutOfMemoryError) that names the node, with the function's error as its
    cause; KeyboardInterrupt and SystemExit are not converted.
    """
    sources = [_exported(operand) for operand in src if operand is not None]
    result = _exported(dst, read_only=False)
    try:
        # NaN, infinities and overflows are valid results.
        with np.errstate(all="ignore"):
            op.run(result, sources, n_threads)
        if dst.buffer.keeper is None:
            dst.array()[...] = result
    except Exception as error:
        raise compute_error(device, dst.tensor, error) from error
