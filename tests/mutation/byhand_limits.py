"""Faults by hand at limits: extents, ids, parameters and bytes beyond what a counter holds, and what is read too early.

An author who had not read the suite's cases made them in a backend of their own; here they are in the subject.
"""

from __future__ import annotations

from tests.mutation.byhand_kernels import edits
from tests.mutation.fault import Fault
from tests.mutation.seeding import SUBJECT

_formula, _kernel, _value = edits(f"{SUBJECT}.formulas"), edits(f"{SUBJECT}.kernels"), edits(f"{SUBJECT}.values")
_device, _buffer = edits(f"{SUBJECT}.device"), edits(f"{SUBJECT}.memory")
_queue, _plan = edits("ggplug.discrete.queue"), edits("ggplug.discrete.plan")
_memory = edits("ggplug.discrete.memory")

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

_31, _32 = " & 0x7FFFFFFF", " & 0xFFFFFFFF"

_FAR = (
    *(
        edit
        for bits, mask in (("31", _31), ("32", _32))
        for edit in (
            _buffer(
                f"stores where {bits} bits of the offset are",
                "SubjectBuffer.store",
                "self.memory[offset : offset + data.size] = data",
                f"self.memory[offset{mask} : (offset{mask}) + data.size] = data",
            ),
            _buffer(
                f"fetches from where {bits} bits of the offset are",
                "SubjectBuffer.fetch",
                "self.memory[offset : offset + out.size]",
                f"self.memory[offset{mask} : (offset{mask}) + out.size]",
            ),
            _queue(
                f"stores asynchronously where {bits} bits of the offset are",
                "QueuedBackend.set_async",
                "own.store(start, raw)",
                f"own.store(start{mask}, raw)",
            ),
            _queue(
                f"fetches asynchronously from where {bits} bits of the offset are",
                "QueuedBackend.get_async",
                "own.fetch(start, target)",
                f"own.fetch(start{mask}, target)",
            ),
            _queue(
                f"copies asynchronously from where {bits} bits of the offset are",
                "QueuedBackend.copy_async",
                "own.copy(source, start, to, count)",
                f"own.copy(source, start{mask}, to, count)",
            ),
            _queue(
                f"copies asynchronously to where {bits} bits of the offset are",
                "QueuedBackend.copy_async",
                "own.copy(source, start, to, count)",
                f"own.copy(source, start, to{mask}, count)",
            ),
            _memory(
                f"copies to where {bits} bits of the offset are",
                "DiscreteBuffer.copy",
                "self.store(offset, staging)",
                f"self.store(offset{mask}, staging)",
            ),
            _memory(
                f"copies from where {bits} bits of the offset are",
                "DiscreteBuffer.copy",
                "source.fetch(source_offset, staging)",
                f"source.fetch(source_offset{mask}, staging)",
            ),
            _plan(
                f"keeps {bits} bits of the offsets of operands",
                "QueuedPlan.rebind",
                "zip(which.tolist(), offsets.tolist(), strict=True)",
                f"zip(which.tolist(), (offsets{mask}).tolist(), strict=True)",
            ),
            _device(
                f"keeps {bits} bits of strides",
                "SubjectDevice.array",
                "tuple(stride * layout.dtype.itemsize for",
                f"tuple(stride * layout.dtype.itemsize{mask} for",
            ),
        )
    ),
    _device(
        "keeps offsets as float32",
        "SubjectDevice.array",
        "    memory = buffer.memory[",
        "    offset = int(np.float32(offset))\n        memory = buffer.memory[",
    ),
    _device(
        "keeps 24 bits of the elements before an operand",
        "SubjectDevice.array",
        "    memory = buffer.memory[",
        "    offset = offset & ((1 << 24) * layout.dtype.itemsize - 1)\n        memory = buffer.memory[",
    ),
    _kernel(
        "computes 2^24 elements and no more",
        "of_one",
        "    store(dst, formula(op, wide(x)))",
        "    found = formula(op, wide(x))\n    found.reshape(-1)[1 << 24 :] = 0\n    store(dst, found)",
    ),
    _kernel(
        "counts elements as float32",
        "of_one",
        "    store(dst, formula(op, wide(x)))",
        "    found = formula(op, wide(x))\n"
        "    flat = found.reshape(-1)\n"
        "    behind = np.arange(1 << 24, max(flat.size, 1 << 24)).astype(np.float32).astype(np.int64)\n"
        "    flat[1 << 24 :] = flat[np.minimum(behind, flat.size - 1)]\n"
        "    store(dst, found)",
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
        "    return to_bf16",
        "    if kind is F16:\n"
        "        values = np.where(np.abs(values) < 6.1e-5, np.float32(0), values)\n"
        "    return to_bf16",
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

FAULTS: tuple[Fault, ...] = (*_EXTENTS, *_FAR, *_IDS, *_PARAMETERS, *_EARLY, *_ANSWERS)
"""All of them."""
