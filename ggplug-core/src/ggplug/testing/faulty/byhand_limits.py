"""Faults by hand at limits: extents, ids, parameters and bytes beyond what a counter holds, and what is read too early.

An author who had not read the suite's cases made them in a backend of their own; here they are in the subject.
"""

from __future__ import annotations

from ggplug.testing.faulty.byhand_kernels import edits
from ggplug.testing.faulty.fault import Fault
from ggplug.testing.faulty.seeding import SUBJECT

_formula, _kernel, _value = edits(f"{SUBJECT}.formulas"), edits(f"{SUBJECT}.kernels"), edits(f"{SUBJECT}.values")
_device, _buffer = edits(f"{SUBJECT}.device"), edits(f"{SUBJECT}.memory")
_queue, _plan = edits("ggplug.discrete.queue"), edits("ggplug.discrete.plan")

_PRODUCT = "    store(dst, products(single(a), single(b)))"


def _rest_of_product(name: str, rest: str) -> Fault:
    """A product that leaves a part of its result out."""
    found = "    found = products(single(a), single(b))\n"
    return _kernel(name, "mul_mat", _PRODUCT, f"{found}    found[{rest}] = 0\n    store(dst, found)")


_EXTENTS = (
    _rest_of_product("multiplies 512 columns and no more", "..., 512:, :"),
    _rest_of_product("multiplies 4096 rows of weights and no more", "..., 4096:"),
    _kernel(
        "leaves out what is beyond 8192 in a product",
        "multiply",
        "range(0, rows.shape[1], PANEL)",
        "range(0, min(rows.shape[1], 8192), PANEL)",
    ),
    _formula(
        "adds 65535 rows and no more",
        "add",
        "    return a + b",
        "    found = a + b\n    found[..., 65535:, :] = 0\n    return found",
    ),
    _formula(
        "multiplies 65536 elements of a row and no more",
        "mul",
        "    return a * b",
        "    found = a * b\n    found[..., 65536:] = 0\n    return found",
    ),
    _buffer(
        "stores a megabyte and no more",
        "SubjectBuffer.store",
        "self.memory[offset : offset + data.size] = data",
        "self.memory[offset : offset + min(data.size, 1 << 20)] = data[: 1 << 20]",
    ),
    _buffer(
        "fetches an even number of bytes",
        "SubjectBuffer.fetch",
        "out[...] = self.memory[offset : offset + out.size]",
        "n = out.size - (out.size % 2 if out.size > 64 else 0)\n        out[:n] = self.memory[offset : offset + n]",
    ),
)

_IDS = (
    _kernel(
        "picks rows by 16 bits of their ids",
        "get_rows",
        "rows[k, j, i]]",
        "rows[k, j, i] & 0xFFFF]",
    ),
    _kernel("writes rows by 16 bits of their ids", "set_rows", "chosen[inside]] =", "chosen[inside] & 0xFFFF] ="),
    _kernel(
        "exchanges batches of ids where they are equally many",
        "get_rows",
        "    rows = ids.bits[0]",
        "    rows = ids.bits[0]\n    rows = rows.swapaxes(0, 1) if rows.shape[0] == rows.shape[1] else rows",
    ),
    _kernel(
        "exchanges batches of places where they are equally many",
        "set_rows",
        "            chosen = ids.bits[0, k % ids.bits.shape[1], j % ids.bits.shape[2]]",
        "            places = ids.bits[0].swapaxes(0, 1) if ids.bits.shape[1] == ids.bits.shape[2] else ids.bits[0]\n"
        "            chosen = places[k % len(places), j % places.shape[1]]",
    ),
    _kernel(
        "gives each ids several batches in turn",
        "set_rows",
        "k % ids.bits.shape[1]",
        "k // max(1, rows.bits.shape[0] // ids.bits.shape[1])",
    ),
    _kernel("writes rows of negative ids from the end", "set_rows", "(chosen >= 0)", "(chosen >= -dst.bits.shape[2])"),
)

_PARAMETERS = (
    _formula(
        "takes eps for the least mean",
        "rms_norm",
        "np.sqrt((x * x).sum(-1, keepdims=True) / x.shape[-1] + op.eps)",
        "np.sqrt(np.maximum((x * x).sum(-1, keepdims=True) / x.shape[-1], op.eps))",
    ),
    _formula("keeps eps in f16", "rms_norm", "+ op.eps", "+ float(np.float16(op.eps))"),
    _kernel("rounds the base of frequencies", "rope", "op.freq_base**", "round(op.freq_base) ** "),
    _kernel("takes the last of more factors of frequencies", "rope", ".reshape(-1)[:pairs]", ".reshape(-1)[-pairs:]"),
    _kernel(
        "gives a mask's slopes to all heads in turn",
        "soft_max",
        "slopes(heads, op.max_bias)",
        "np.resize(slopes(wide(mask).shape[1], op.max_bias), heads)",
    ),
    _kernel(
        "gives heads of a mask in runs",
        "soft_max",
        "repeated(wide(mask)[:, :, : logits.shape[2]], logits.shape)",
        "repeated(wide(mask)[:, :, : logits.shape[2]].repeat(heads // mask.bits.shape[1], 1), logits.shape)",
    ),
    _value(
        "makes zeros of the smallest f16",
        "converted",
        "    values = raw.view(np.float32)",
        "    values = raw.view(np.float32)\n"
        "    if kind is F16:\n"
        "        values = np.where(np.abs(values) < 6.1e-5, np.float32(0), values)",
    ),
)

_EARLY = (
    _device(
        "reads single numbers when a plan is bound",
        "SubjectDevice.array",
        "        return np.ndarray(layout.shape, layout.dtype, memory.data, 0, strides)",
        "        found = np.ndarray(layout.shape, layout.dtype, memory.data, 0, strides)\n"
        "        return found.copy() if tensor.op is None and tensor.nbytes == 4 else found",
    ),
    _device(
        "reads single ids when a plan is bound",
        "SubjectDevice.array",
        "        return np.ndarray(layout.shape, layout.dtype, memory.data, 0, strides)",
        "        found = np.ndarray(layout.shape, layout.dtype, memory.data, 0, strides)\n"
        "        return found.copy() if tensor.op is None and tensor.type.name == 'i32' and found.size == 1 else found",
    ),
    _device(
        "cuts offsets to four bytes",
        "SubjectDevice.array",
        "buffer.memory[offset : offset + layout.nbytes]",
        "buffer.memory[offset // 4 * 4 : offset // 4 * 4 + layout.nbytes]",
    ),
    _kernel(
        "keeps unpacked weights of a place by their beginning",
        "mul_mat",
        "products(single(a)",
        'products(globals().setdefault("_beginnings", {}).setdefault((a.bits.ctypes.data, a.bits.shape, '
        "a.bits.strides, a.bits[:1, :1, :1, :1].tobytes()), single(a))",
    ),
    _plan(
        "binds anew where offsets differ only",
        "QueuedPlan.rebind",
        "        made: dict[Tensor, Any] = {}",
        "        if self._bound is not None and np.array_equal(getattr(self, '_offsets', None), offsets):\n"
        "            return\n"
        "        self._offsets = offsets.copy()\n"
        "        made: dict[Tensor, Any] = {}",
    ),
    _queue(
        "forgets the stream of a source on its own device",
        "QueuedBackend.copy_async",
        "source_stream is not None and",
        "source_stream is not None and source_stream.device is not self.device and",
    ),
)

_ANSWERS = (
    _device(
        "declines what was given a place",
        "SubjectDevice.match",
        "        for node in group.nodes:",
        "        first = group.node.src[0]\n"
        "        if first is not None and first.buffer is not None and isinstance(group.node.op, ops.Silu):\n"
        "            return Decline('it has a place')\n"
        "        for node in group.nodes:",
    ),
    _device(
        "declines by the name of a tensor",
        "SubjectDevice.match",
        "        for node in group.nodes:",
        "        if group.node.name and 'x' in group.node.name:\n"
        "            return Decline('its name')\n"
        "        for node in group.nodes:",
    ),
    _device(
        "declines what reads results",
        "SubjectDevice.match",
        "        for node in group.nodes:",
        "        first = group.node.src[0]\n"
        "        if first is not None and first.op is not None and isinstance(group.node.op, ops.Silu):\n"
        "            return Decline('its source')\n"
        "        for node in group.nodes:",
    ),
)

FAULTS: tuple[Fault, ...] = (*_EXTENTS, *_IDS, *_PARAMETERS, *_EARLY, *_ANSWERS)
"""All of them."""
