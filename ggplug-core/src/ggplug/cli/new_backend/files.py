"""The files of a new backend's distribution.  ``$name`` and the like are filled in."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from string import Template

from ggplug.backend import API_VERSION
from ggplug.cli.new_backend.kernels import function, row, types_of

_PYPROJECT = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "ggplug-$name"
version = "0.1.0"
description = "A ggplug backend for $device"
requires-python = ">=3.11"
dependencies = ["ggplug-core>=0.1", "numpy"]

[project.optional-dependencies]
test = ["ggplug-core[test]"]

[project.entry-points."ggplug.backends.v$api_version"]
$device = "$module"

[tool.hatch.build.targets.wheel]
packages = ["src/$module"]
"""

_README = """\
# ggplug-$name

A ggplug backend: the device `$device`, with memory $memory_words.

    pip install ".[test]"
    ggplug devices                                        # lists it
    pytest                                                # the conformance suite
    ggplug conformance $device --op $first    # one op, without pytest

A new op is a function in `src/$module/kernels.py` and a line in its table, with the types of its result and of each
source; the suite tests it from then on. Ops without a kernel are declined, and so are types that its line does not
name; other devices compute them. Block types such as Q8_0 are read by `numbers()` and written by `store(...)`,
which rounds to the type of the result. `ggplug ops` lists all ops and types.

What moves data teaches the most, because strides, views, types and ids meet there: begin with `cpy` and `set_rows`
(`ggplug new-backend NAME --ops cpy,set_rows` writes them, if they are not here). Kernels of `rope`, `mul_mat_id`
and some fifty other ops, over a library's arrays, are in `examples/ggplug-torch` of ggplug's repository.
ggplug's page "Writing a backend" goes on from here: queues, plans of one's own, several nodes at once, block types.
"""

_CI = """\
name: tests
on: [push, pull_request]
jobs:
  tests:
    runs-on: ubuntu-latest
    steps:
      - uses: actions/checkout@v4
      - uses: actions/setup-python@v5
        with:
          python-version: "3.12"
      - run: pip install ".[test]"
      - run: pytest
"""

_TEST = """\
\"\"\"The device conforms: every op that it claims, and the contract of ggplug.backend.\"\"\"

import $module  # noqa: F401 - ops that it brings are tested too
from ggplug.testing import BackendSuite


class Test$device(BackendSuite):
    device_name = "$device"
"""

_INIT = """\
\"\"\"The ggplug backend for $device.\"\"\"

from __future__ import annotations

from collections.abc import Sequence

from ggplug.backend import Device, Registration
from ggplug.hookspecs import hookimpl
from $module.device import ${device}Device


class ${device}Registration(Registration):
    name = "$device"
    version = "0.1.0"
    api_version = $api_version

    def __init__(self) -> None:
        self._devices = [${device}Device()]

    def devices(self) -> Sequence[Device]:
        return self._devices


@hookimpl
def ggplug_backend_registration() -> Registration:
    return ${device}Registration()
"""

_KERNELS = """\
\"\"\"The kernels: a function for each op, and the types that it computes with.

A kernel is called as ``kernel(op, dst, *src)`` with Values.  A result may lie on one of its sources, so a kernel is
done with reading before it writes.  Extents may be 0: a result without elements is not computed, but a result with
elements can have sources that have none, such as the sums of empty rows.
\"\"\"

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ggplug import ops, quants
from ggplug.tensor import Tensor
from ggplug.types import $types, Type

Array = npt.NDArray[Any]


class Values(NamedTuple):
    \"\"\"What a kernel is given for a tensor.

    ``array``: four-dimensional, outermost axis first, over the tensor's memory.  Of block types it has the blocks'
    bytes, and its last axis counts blocks; ``type`` says what they mean.
    \"\"\"

    array: Array
    type: Type

    def numbers(self) -> Array:
        \"\"\"The values; of types that NumPy has not, such as blocks and BF16, as float32.\"\"\"
        if self.array.dtype.kind in "fi":
            return self.array
        *outer, blocks = self.array.shape
        if self.array.size == 0:  # there are no bytes to decode
            return np.zeros((*outer, blocks * self.type.block_size), np.float32)
        rows = np.ascontiguousarray(self.array).view(np.uint8).reshape(*outer, -1)
        return quants.dequantize(rows, self.type)

    def store(self, numbers: Array) -> None:
        \"\"\"Makes these the values, rounded to the type.

        Integers are cut towards zero; what lies beyond their range becomes the nearest of them, and NaN becomes 0.
        \"\"\"
        if self.array.dtype.kind == "i":
            limits = np.iinfo(self.array.dtype)
            inside = (numbers > limits.min) & (numbers < limits.max)
            beyond = np.where(numbers >= limits.max, limits.max, np.where(numbers <= limits.min, limits.min, 0))
            self.array[...] = np.where(inside, np.where(inside, numbers, 0).astype(self.array.dtype), beyond)
        elif self.type is F32:
            self.array[...] = numbers
        else:
            raw = quants.quantize(np.ascontiguousarray(numbers, np.float32), self.type, stored=True)
            self.array[...] = raw.reshape(-1).view(self.array.dtype).reshape(self.array.shape)


class Kernel(NamedTuple):
    \"\"\"How an op is computed, and the types that its result and each of its sources may have.

    Sources beyond those that ``sources`` names have the types of the last.
    \"\"\"

    compute: Callable[..., None]
    result: tuple[Type, ...] = (F32,)
    sources: tuple[tuple[Type, ...], ...] = ((F32,),)


def on_arrays(kernel: Callable[..., None]) -> Callable[..., None]:
    \"\"\"A kernel for plain types, which is given arrays.\"\"\"

    @wraps(kernel)
    def compute(op: Any, *operands: Values | None) -> None:
        kernel(op, *(None if each is None else each.array for each in operands))

    return compute


def wide(x: Array) -> Array:
    \"\"\"Values to compute with where float32 is not enough.\"\"\"
    return x.astype(np.float64)


def repeated(b: Array, shape: tuple[int, ...]) -> Array:
    \"\"\"An array repeated along each axis to a shape that is a multiple of its own.\"\"\"
    return np.tile(b, [to // n if n else 1 for to, n in zip(shape, b.shape, strict=True)])


$functions


KERNELS: dict[Any, Kernel] = {
$table
}


def refusal(node: Tensor) -> str:
    \"\"\"Why the kernel of a node's op does not compute it, or an empty string.\"\"\"
    kernel = KERNELS.get(type(node.op))
    if node.op is None or kernel is None:
        return ""
    if node.type not in kernel.result:
        return f"the kernel of this op gives no {node.type.name}"
    for position, (name, source) in enumerate(zip(node.op.sources, node.src, strict=True)):
        if source is not None and source.type not in kernel.sources[min(position, len(kernel.sources) - 1)]:
            return f"the kernel of this op takes no {name} of {source.type.name}"
    return ""
"""

_HOST = """\
\"\"\"The device: its memory is the host's.\"\"\"

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, ClassVar

from ggplug import host
from ggplug.backend import BufferType, Decline, Device, Group, Memory, Operand
from ggplug.host import HostBufferType
from ggplug.types import DeviceKind
from $module.kernels import KERNELS, Values, refusal


def on_operands(kernel: Callable[..., None]) -> Callable[..., None]:
    \"\"\"A kernel, called with ggplug's operands.\"\"\"

    @wraps(kernel)
    def call(op: Any, *operands: Operand | None) -> None:
        kernel(op, *(None if each is None else Values(each.array(), each.tensor.type) for each in operands))

    return call


class ${device}Device(Device):
    name = "$device"
    description = "a new device over host memory"
    kind = DeviceKind.ACCEL
    kernels: ClassVar = {op: on_operands(kernel.compute) for op, kernel in KERNELS.items()}

    def __init__(self) -> None:
        self._buffer_type = HostBufferType("$device", self)

    def memory(self) -> Memory:
        return host.memory()

    @property
    def buffer_type(self) -> BufferType:
        return self._buffer_type

    def supports_buffer_type(self, buffer_type: BufferType) -> bool:
        return buffer_type.is_host

    def match(self, group: Group) -> Any:
        reason = refusal(group.node)
        return Decline(reason) if reason else super().match(group)
"""

_DISCRETE = """\
\"\"\"The device: memory that the host does not see, and a queue of its own.

Here the memory is a NumPy array and the queue a thread; put your library's in their place.
\"\"\"

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar

import numpy as np

from ggplug import host
from ggplug.backend import BufferType, Bytes, Decline, Group, Memory, TensorLayout, check_parameters
from ggplug.discrete import DiscreteBuffer, DiscreteDevice, Job, QueuedBackend
from ggplug.errors import OutOfMemoryError
from ggplug.tensor import Tensor
from ggplug.types import DeviceKind
from $module.kernels import KERNELS, Values, refusal


class ${device}Buffer(DiscreteBuffer):
    \"\"\"One allocation.\"\"\"

    def __init__(self, type: BufferType, size: int, device: ${device}Device) -> None:
        super().__init__(type, size, device)
        self.memory = np.empty(size, np.uint8)

    def store(self, offset: int, data: Bytes) -> None:
        self.memory[offset : offset + data.size] = data

    def fetch(self, offset: int, out: Bytes) -> None:
        out[...] = self.memory[offset : offset + out.size]

    def dispose(self) -> None:
        self.memory = np.empty(0, np.uint8)


class ${device}Memory(BufferType):
    device: ${device}Device

    def _alloc(self, size: int) -> ${device}Buffer:
        try:
            return ${device}Buffer(self, size, self.device)
        except MemoryError as error:
            raise OutOfMemoryError(f"{self.name}: {error}", device=self.device, requested=size) from error


class ${device}Stream(QueuedBackend):
    \"\"\"A thread that calls the jobs that it is given, in order.\"\"\"

    def __init__(self, device: ${device}Device) -> None:
        super().__init__(device)
        self._executor = ThreadPoolExecutor(1)

    def submit(self, job: Job) -> None:
        self._executor.submit(job)

    def close(self) -> None:
        self._executor.shutdown()


class ${device}Device(DiscreteDevice):
    name = "$device"
    description = "a new device with memory of its own"
    kind = DeviceKind.ACCEL
    kernels: ClassVar = {op: kernel.compute for op, kernel in KERNELS.items()}

    def __init__(self) -> None:
        super().__init__()
        self._buffer_type = ${device}Memory("$device", self)

    def memory(self) -> Memory:
        return host.memory()

    @property
    def buffer_type(self) -> BufferType:
        return self._buffer_type

    def init(self, **params: Any) -> ${device}Stream:
        check_parameters(self, params)
        return ${device}Stream(self)

    def match(self, group: Group) -> Any:
        reason = refusal(group.node)
        return Decline(reason) if reason else super().match(group)

    def operand(self, tensor: Tensor, buffer: DiscreteBuffer, offset: int) -> Values:
        \"\"\"What kernels are given: an array over the buffer's memory, not a copy of it, and the type.\"\"\"
        assert isinstance(buffer, ${device}Buffer)
        layout = TensorLayout.of(tensor)
        array = np.ndarray(layout.shape, layout.dtype, buffer.memory.data, offset, layout.byte_strides)
        return Values(array, tensor.type)
"""

MEMORIES = {"host": (_HOST, "that the host sees"), "discrete": (_DISCRETE, "of its own that the host does not see")}


def module_of(name: str) -> str:
    """The module of the backend ``ggplug-NAME``."""
    return f"ggplug_{name.replace('-', '_')}"


def backend_of(name: str) -> str:
    """What the backend ``ggplug-NAME`` and its device are called."""
    return "".join(part.capitalize() for part in name.replace("_", "-").split("-"))


def files(name: str, memory: str, ops: Sequence[str]) -> dict[Path, str]:
    """The files of the distribution ``ggplug-NAME``, by their paths in its folder."""
    module = module_of(name)
    device, words = MEMORIES[memory]
    filled = {
        "name": name,
        "module": module,
        "device": backend_of(name),
        "memory_words": words,
        "api_version": str(API_VERSION),
        "first": ops[0],
        "types": ", ".join(types_of(ops)),
        "functions": "\n\n\n".join(map(function, ops)),
        "table": "\n".join(map(row, ops)),
    }
    source = Path("src") / module
    templates = {
        Path("pyproject.toml"): _PYPROJECT,
        Path("README.md"): _README,
        Path(".github/workflows/tests.yml"): _CI,
        Path(f"tests/test_{module}.py"): _TEST,
        source / "__init__.py": _INIT,
        source / "device.py": device,
        source / "kernels.py": _KERNELS,
    }
    return {path: Template(text).substitute(filled) for path, text in templates.items()} | {source / "py.typed": ""}
