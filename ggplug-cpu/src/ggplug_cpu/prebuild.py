"""Finds the kernels that encoders and decoders are likely to need, by matching a node or group of every kind."""

from __future__ import annotations

from collections.abc import Iterator

from ggplug import ops
from ggplug.backend import BufferType, Decline, Group
from ggplug.graph import Graph
from ggplug.tensor import Tensor, new_tensor
from ggplug_cpu.compiler import Kernel
from ggplug_cpu.device import CpuDevice
from ggplug_cpu.matching import match
from ggplug_cpu.ops.mul_mat.weights import pack_panels
from ggplug_cpu.packed import PackedBufferType
from ggplug_cpu.types import BLOCKS, ENCODED, PLAIN

_WEIGHTS = (*PLAIN, *BLOCKS)


def likely_kernels() -> list[Kernel]:
    """Each kernel once, for the current target."""
    device = CpuDevice()
    (packed,) = device.extra_buffer_types
    assert isinstance(packed, PackedBufferType)
    graphs = [Graph(chain) for chain in (*_chains(), *_layers(packed))]
    together = [group for graph in graphs for group in device.groups(graph).of(graph)]
    found: dict[Kernel, None] = {}
    for group in [*(Group((node,)) for node in (*_nodes(), *_products(packed))), *together]:
        chosen = match(group)
        if not isinstance(chosen, Decline):
            for entry in chosen.entries:
                found[entry.kernel] = None
                found.update((word, None) for word in entry.words if isinstance(word, Kernel))
    found.update((pack_panels(form.kind, name), None) for name, form in packed.forms.items() if form.keeps_rows)
    return list(found)


def _nodes() -> Iterator[Tensor]:
    """The nodes of a BERT encoder and a llama-type decoder, for one column and for many."""
    for columns in (1, 64):
        x = new_tensor("f32", (256, columns))
        ids, experts = new_tensor("i32", columns), new_tensor("i32", (2, columns))
        for weights in _WEIGHTS:
            w = new_tensor(weights, (256, 512))
            yield ops.mul_mat(w, x)
            yield ops.mul_mat_id(new_tensor(weights, (256, 512, 8)), ops.reshape(x, 256, 1, columns), experts)
            yield ops.get_rows(w, ids)
        for cache in (*PLAIN, *ENCODED):
            yield ops.set_rows(new_tensor(cache, (256, 512)), x, new_tensor("i64", columns))
        yield from (ops.add(x, x), ops.mul(x, x), ops.scale(x, 0.5), ops.norm(x), ops.rms_norm(x), ops.l2_norm(x))
        yield from (ops.gelu(x), ops.gelu_erf(x), ops.silu(x), ops.swiglu(x, x), ops.geglu(x, x), ops.sum_rows(x))
        yield from (ops.soft_max(x, new_tensor(mask, x.ne[:2])) for mask in ("f32", "f16"))
        heads = ops.reshape(x, 64, 4, columns)
        yield from (ops.rope(heads, ids, 64, mode=mode) for mode in (0, 2))
        yield from (ops.cont(ops.permute(heads, *axes)) for axes in ((0, 2, 1, 3), (1, 2, 0, 3)))
        yield ops.argmax(x)


def _products(packed: BufferType) -> Iterator[Tensor]:
    """Products of one, some and very many columns with packed weights."""
    for name in _WEIGHTS:
        w = new_tensor(name, (256, 512))
        if packed.refusal(w) is None:
            _placed(w, packed)
            yield from (ops.mul_mat(w, new_tensor("f32", (256, columns))) for columns in (1, 64, 8192))


def _placed(weights: Tensor, memory: BufferType) -> Tensor:
    weights.place(memory.alloc(memory.alloc_size(weights)))
    return weights


def _layers(packed: BufferType) -> Iterator[Tensor]:
    """An encoder's layers over many tokens, of the types of encoders: those of eight bits or more."""
    for name in _WEIGHTS:
        weights = new_tensor(name, (256, 512)), new_tensor(name, (512, 256))
        if weights[0].nbytes < weights[0].size or packed.refusal(weights[0]) is not None:
            continue
        up, down = (_placed(each, packed) for each in weights)
        x, inside, bias = new_tensor("f32", (256, 1024)), new_tensor("f32", 512), new_tensor("f32", 256)
        hidden = ops.gelu_erf(ops.add(ops.mul_mat(up, x), inside))
        total = ops.add(ops.add(ops.mul_mat(down, hidden), bias), x)
        yield ops.add(ops.mul(ops.norm(total), bias), bias)
        heads = ops.reshape(_encoder_attention(8), 256, 64 * 8)
        out, y = _placed(new_tensor(name, (256, 256)), packed), new_tensor("f32", (256, 64 * 8))
        total = ops.add(ops.add(ops.mul_mat(out, heads), bias), y)
        yield ops.add(ops.mul(ops.norm(total), bias), bias)


def _chains() -> Iterator[Tensor]:
    """The groups of these nodes."""
    for columns in (1, 64):
        x, y, z = (new_tensor("f32", (256, columns)) for _ in range(3))
        scale, shift, bias = new_tensor("f32", 256), new_tensor("f32", 256), new_tensor("f32", 512)
        for normed in (ops.norm, ops.rms_norm):
            yield ops.mul(normed(ops.add(x, y)), scale)
        yield ops.mul(ops.rms_norm(x), scale)
        yield ops.add(ops.mul(ops.norm(ops.add(x, y)), scale), shift)
        yield ops.add(ops.mul(ops.norm(ops.add(ops.add(x, y), z)), scale), shift)
        heads, ids, at = ops.reshape(x, 64, 4, columns), new_tensor("i32", columns), new_tensor("i64", columns)
        for mode in (0, 2):
            rotated = ops.reshape(ops.rope(heads, ids, 64, mode=mode), 256, columns)
            yield ops.set_rows(new_tensor("f16", (256, 512)), rotated, at)
        w, square = new_tensor("f32", (256, 512)), new_tensor("f32", (256, 256))
        yield ops.swiglu(ops.mul_mat(w, x), ops.mul_mat(new_tensor("f32", (256, 512)), x))
        yield ops.add(ops.mul_mat(square, x), y)
        biased = [ops.add(ops.mul_mat(w, x), bias) for _ in range(3)]
        yield from (biased[0], ops.gelu(biased[1]), ops.gelu_erf(biased[2]))
    yield _encoder_attention(2)
    for weights in _WEIGHTS:
        yield _encoder_residual(weights)


def _encoder_attention(texts: int) -> Tensor:
    """Attention of 64 tokens of each text, 8 heads of 32 numbers; a copy transposes the values, as in ggml's models."""
    q, k, v = (new_tensor("f32", (32, 8, 64, texts)) for _ in range(3))
    logits = ops.mul_mat(ops.permute(k, 0, 2, 1, 3), ops.permute(q, 0, 2, 1, 3))
    probabilities = ops.soft_max(logits, new_tensor("f32", (64, 64, 1, texts)))
    mixed = ops.mul_mat(ops.cont(ops.permute(v, 1, 2, 0, 3)), probabilities)
    return ops.cont(ops.permute(mixed, 0, 2, 1, 3))


def _encoder_residual(weights: str) -> Tensor:
    """A product of many tokens with bias and residual, which is normalised."""
    x, residual = (new_tensor("f32", (256, 8192)) for _ in range(2))
    bias, scale, shift = (new_tensor("f32", 256) for _ in range(3))
    total = ops.add(ops.add(ops.mul_mat(new_tensor(weights, (256, 256)), x), bias), residual)
    return ops.add(ops.mul(ops.norm(total), scale), shift)
