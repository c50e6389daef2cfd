"""A transformer layer, a convolution net and an SSM layer: their numbers, and their gradients by PyTorch's autograd.

``PYTHONPATH=tests/support python -m oracles.layers`` records the gradients, computed in float64, in
tests/data/gradients.npz; it needs PyTorch.  Tests compute the same layers by ggplug.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from paths import DATA

Array = npt.NDArray[np.float32]

RECORDED = DATA / "gradients.npz"

TOKENS, WIDTH, HEADS, VOCABULARY, HIDDEN = 6, 16, 2, 11, 24
TRANSFORMER = {
    "embeddings": (VOCABULARY, WIDTH),
    "attention_norm": (WIDTH,),
    "wq": (WIDTH, WIDTH),
    "wk": (WIDTH, WIDTH),
    "wv": (WIDTH, WIDTH),
    "wo": (WIDTH, WIDTH),
    "ffn_norm": (WIDTH,),
    "gate": (HIDDEN, WIDTH),
    "up": (HIDDEN, WIDTH),
    "down": (WIDTH, HIDDEN),
    "output": (VOCABULARY, WIDTH),
}
IDS, LABELS = [3, 1, 4, 1, 5, 9], [1, 4, 1, 5, 9, 2]

CONVOLUTION = {
    "images": (2, 3, 8, 8),
    "first": (4, 3, 3, 3),
    "norm_weight": (4,),
    "norm_bias": (4,),
    "second": (6, 4, 3, 3),
    "second_bias": (6,),
    "output": (5, 6),
}
CLASSES = [3, 0]

STEPS, INNER, STATE, TAPS = 5, 8, 4, 4
SSM = {
    "x": (STEPS, INNER),
    "in": (2 * INNER, INNER),
    "conv": (INNER, TAPS),
    "conv_bias": (INNER,),
    "to_b": (STATE, INNER),
    "to_c": (STATE, INNER),
    "to_dt": (INNER, INNER),
    "dt_bias": (INNER,),
    "a_log": (INNER, STATE),
    "d": (INNER,),
    "out": (INNER, INNER),
}

LAYERS = {"transformer": TRANSFORMER, "convolution": CONVOLUTION, "ssm": SSM}


def numbers(layer: str) -> dict[str, Array]:
    """The parameters and sources of a layer."""
    random = np.random.default_rng(len(layer))
    return {
        name: (random.standard_normal(shape) / np.sqrt(shape[-1])).astype(np.float32)
        for name, shape in LAYERS[layer].items()
    }


def transformer(p: dict[str, Any]) -> Any:
    """A decoder of one layer: rotary attention, gated units, the loss of the next tokens."""
    import torch
    from torch.nn import functional

    def normed(x: Any, weight: Any) -> Any:
        return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-5) * weight

    def rotated(x: Any) -> Any:
        angles = torch.arange(TOKENS)[:, None, None] * 10000.0 ** (-torch.arange(0, size, 2) / size)
        even, odd = x[..., 0::2], x[..., 1::2]
        pairs = even * angles.cos() - odd * angles.sin(), even * angles.sin() + odd * angles.cos()
        return torch.stack(pairs, -1).flatten(-2)

    size = WIDTH // HEADS
    x = p["embeddings"][torch.tensor(IDS)]
    h = normed(x, p["attention_norm"])
    q, k, v = ((h @ p[name].T).view(TOKENS, HEADS, size) for name in ("wq", "wk", "wv"))
    q, k, v = (each.transpose(0, 1) for each in (rotated(q), rotated(k), v))
    logits = (q @ k.transpose(1, 2)) / size**0.5
    hidden = torch.triu(torch.ones(TOKENS, TOKENS, dtype=torch.bool), 1)
    attended = torch.softmax(logits.masked_fill(hidden, -torch.inf), -1) @ v
    x = x + attended.transpose(0, 1).reshape(TOKENS, WIDTH) @ p["wo"].T
    h = normed(x, p["ffn_norm"])
    x = x + (functional.silu(h @ p["gate"].T) * (h @ p["up"].T)) @ p["down"].T
    return functional.cross_entropy(x @ p["output"].T, torch.tensor(LABELS))


def convolution(p: dict[str, Any]) -> Any:
    """Two convolutions with group norm, GELU, pooling and ReLU, and a classifier."""
    import torch
    from torch.nn import functional

    x = functional.conv2d(p["images"], p["first"], padding=1)
    x = functional.group_norm(x, 2, p["norm_weight"], p["norm_bias"], 1e-5)
    x = functional.max_pool2d(functional.gelu(x), 2)
    x = functional.relu(functional.conv2d(x, p["second"], p["second_bias"], stride=2, padding=1))
    return functional.cross_entropy(x.mean((2, 3)) @ p["output"].T, torch.tensor(CLASSES))


def ssm(p: dict[str, Any]) -> Any:
    """A selective state space layer with a causal convolution and a gate."""
    import torch
    from torch.nn import functional

    x, gate = (p["x"] @ p["in"].T).chunk(2, -1)
    x = functional.conv1d(functional.pad(x.T[None], (TAPS - 1, 0)), p["conv"][:, None], p["conv_bias"], groups=INNER)
    x = functional.silu(x[0].T)
    b, c = x @ p["to_b"].T, x @ p["to_c"].T
    dt = functional.softplus(x @ p["to_dt"].T + p["dt_bias"])
    state, outputs = torch.zeros(INNER, STATE, dtype=x.dtype), []
    for t in range(STEPS):
        state = state * torch.exp(-torch.exp(p["a_log"]) * dt[t, :, None]) + dt[t, :, None] * b[t] * x[t, :, None]
        outputs.append((state * c[t]).sum(-1))
    y = (torch.stack(outputs) + p["d"] * x) * functional.silu(gate)
    return ((y @ p["out"].T) ** 2).mean()


def main() -> None:
    """Records the loss and the gradients of all layers."""
    import torch

    found = {}
    for name, loss_of in (("transformer", transformer), ("convolution", convolution), ("ssm", ssm)):
        tensors = {each: torch.tensor(values.astype(np.float64)) for each, values in numbers(name).items()}
        for tensor in tensors.values():
            tensor.requires_grad_()
        loss = loss_of(tensors)
        loss.backward()
        found[f"{name}.loss"] = np.float32(loss.item())
        found |= {f"{name}.{each}": tensor.grad.numpy().astype(np.float32) for each, tensor in tensors.items()}
    np.savez_compressed(RECORDED, **found)
    print(f"{RECORDED}: {RECORDED.stat().st_size} bytes, PyTorch {torch.__version__}")


if __name__ == "__main__":
    main()
