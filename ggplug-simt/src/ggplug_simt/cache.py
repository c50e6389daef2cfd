"""The extra ``"cache"`` of a registration: what ``ggplug cache`` shows, clears and prebuilds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from ggplug import ops, types
from ggplug.backend import Decline, Device, Group
from ggplug.cache import KernelFiles
from ggplug.graph import Graph
from ggplug.quants import block_types
from ggplug.tensor import Tensor, new_tensor
from ggplug_simt.device import SimtDevice
from ggplug_simt.library import Launches, Program, VendorProgram

Progress = Callable[[int, int, str], None]


class ProgramCache(KernelFiles):
    """The compiled programs of a language on disk, and how to compile them ahead of time."""

    def __init__(self, language: str, devices: Callable[[], Sequence[Device]]) -> None:
        super().__init__(language)
        self._devices = devices

    def prebuild(self, progress: Progress) -> int:
        """Compiles the missing programs that encoders and decoders need; returns how many were compiled."""
        compiled = 0
        wanted = [(d, program) for d in self._devices() if isinstance(d, SimtDevice) for program in likely(d)]
        for done, (device, program) in enumerate(wanted):
            progress(done, len(wanted), f"{program} for {device.name}")
            before = device.programs.compiled
            device.programs.get(program)
            compiled += device.programs.compiled - before
        return compiled


def likely(device: SimtDevice) -> Iterable[Program]:
    """The programs that a device needs for the supported models, each once."""
    found: dict[Program, None] = {}

    def note(kernel: Launches) -> None:
        programs = (launch.program for launch in kernel.launches)
        found.update(dict.fromkeys(each for each in programs if not isinstance(each, VendorProgram)))

    for node in likely_nodes():
        kernel = device.match(Group((node,)))
        if not isinstance(kernel, Decline):
            note(kernel)
    for graph in likely_graphs():
        if all(map(device.supports_op, graph.nodes)):
            for _, kernel in device.matches(graph, device.groups(graph)):
                note(kernel)
    return found


def likely_graphs() -> Iterator[Graph]:
    """Graphs of parts of an encoder and of a decoder, with nodes that a device may compute as a group."""
    row, x = new_tensor(types.F32, (512,)), new_tensor(types.F32, (512, 64))
    for normed in (ops.norm(x), ops.norm(ops.add(x, x))):
        yield Graph(ops.add(ops.mul(normed, row), row))
    yield Graph(ops.mul(ops.rms_norm(x), row))
    ids, places = new_tensor(types.I32, (64,)), new_tensor(types.I64, (64,))
    for mode in (types.RopeMode.NORMAL, types.RopeMode.NEOX):
        rotated = ops.rope(new_tensor(types.F32, (64, 8, 64)), ids, n_dims=64, mode=mode)
        yield Graph(ops.set_rows(new_tensor(types.F16, (512, 256)), ops.reshape(rotated, 512, 64), places))
    for kind in (types.F32, types.F16, types.BF16, *block_types()):
        weight = new_tensor(kind, (512, 512))
        for columns in (1, 24, 512):
            b = new_tensor(types.F32, (512, columns))
            product = ops.mul_mat(weight, b)
            yield Graph(ops.add(product, row))
            yield Graph(ops.add(ops.add(product, row), b))
            yield Graph(ops.gelu_erf(ops.add(product, row)))
            yield Graph(ops.add(product, b))
            yield Graph(ops.swiglu(product, gate=ops.mul_mat(weight, b)))


def likely_nodes() -> Iterator[Tensor]:
    """The nodes of layers of an encoder and of a decoder, at typical sizes."""
    x = new_tensor(types.F32, (512, 64, 3))
    row = new_tensor(types.F32, (512,))
    ids = new_tensor(types.I32, (64,))
    yield ops.add(x, x)
    yield ops.add(x, row)
    yield ops.mul(x, row)
    for activation in (ops.gelu, ops.gelu_erf, ops.silu, ops.sqr, ops.sqrt):
        yield activation(x)
    yield ops.scale(x, 0.5)
    yield ops.div(x, new_tensor(types.F32, (1, 64, 3)))
    yield ops.swiglu(x, gate=x)
    yield ops.norm(x)
    yield ops.rms_norm(x)
    yield ops.sum_rows(x)
    yield ops.rope(new_tensor(types.F32, (64, 8, 64)), ids, n_dims=64)
    yield ops.rope(new_tensor(types.F32, (64, 8, 64)), ids, n_dims=64, mode=types.RopeMode.NEOX)
    yield ops.cont(ops.permute(x, 0, 2, 1, 3))
    yield ops.cont(ops.transpose(x))
    scores = new_tensor(types.F32, (64, 64, 8))
    for mask in (None, types.F32, types.F16):
        yield ops.soft_max(scores, None if mask is None else new_tensor(mask, (64, 64)))
    places = new_tensor(types.I64, (64,))
    for cache in (types.F32, types.F16):
        yield ops.set_rows(new_tensor(cache, (512, 256)), new_tensor(types.F32, (512, 64)), places)
    for kind in (types.F32, types.F16, types.BF16, *block_types()):
        weight = new_tensor(kind, (512, 512))
        yield ops.get_rows(weight, ids)
        for columns in (1, 24, 512):
            yield ops.mul_mat(weight, new_tensor(types.F32, (512, columns)))
        experts = new_tensor(kind, (512, 512, 8))
        for tokens in (1, 64, 512):
            yield ops.mul_mat_id(experts, new_tensor(types.F32, (512, 1, tokens)), new_tensor(types.I32, (2, tokens)))
    for length in (1, 64):  # attention: logits, and weighted sums of values
        keys = ops.permute(new_tensor(types.F32, (64, 8, 64)), 0, 2, 1, 3)
        queries = ops.permute(new_tensor(types.F32, (64, 8, length)), 0, 2, 1, 3)
        yield ops.mul_mat(keys, queries)
        kept = ops.permute(new_tensor(types.F16, (64, 8, 1024)), 0, 2, 1, 3)
        yield ops.flash_attn_ext(queries, kept, kept, new_tensor(types.F16, (1024, length)))
