"""Cases of rotary position embedding: every mode with everything that it can be combined with."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ggplug.ops.base import Op
from ggplug.ops.rotary import Rope, RopeBack
from ggplug.types import F32, I32, KERNEL_FLOATS, RopeMode
from ggplug_testing.cases.case import LAYOUTS, Case, Leafs, generates, node, spell

_FAR = (1 << 17, 1_000_001, (1 << 24) + 2, 1 << 31)
"""Beyond the contexts of today's models, beyond what float32 counts, and to the end of I32."""

_YARN: dict[str, Any] = {"n_ctx_orig": 512, "freq_scale": 0.7, "ext_factor": 0.75, "attn_factor": 1.2}


@generates(Rope, RopeBack)
def rope_cases(cls: type[Op]) -> Iterator[Case]:
    """Modes x whole or part of the rows x frequency factors x YaRN; types, layouts, far positions."""

    def case(
        label: str, mode: RopeMode, ne: tuple[int, ...], n_dims: int, *, type: Any = F32, layout: Any = "packed",
        factors: bool = False, far: int = 512, **parameters: Any,
    ) -> Case:  # fmt: skip
        axes = 4 if mode & RopeMode.MROPE else 1
        if axes == 4:
            pairs = n_dims if mode == RopeMode.VISION else n_dims // 2
            most = pairs // 3
            parameters.setdefault("sections", (pairs - 2 * most, most, most, 0))

        def make(leafs: Leafs) -> Any:
            x = leafs.tensor(type, *ne, layout=layout)
            chosen = leafs.random.integers(0, far, ne[2] * axes)
            chosen[-1] = far - 1
            positions = leafs.array(I32, chosen)
            divided = leafs.tensor(F32, n_dims, low=0.5, high=2) if factors else None
            return node(cls, x, positions, divided, n_dims=n_dims, mode=int(mode), **parameters)

        return Case(cls.name, label, make)

    for mode in RopeMode:
        name = mode.name.lower()
        vision = mode == RopeMode.VISION
        ne = (32, 3, 5, 2)
        whole = 16 if vision else 32
        yield case(f"{name}", mode, ne, whole)
        yield case(f"{name} factors", mode, ne, whole, factors=True)
        yield case(f"{name} yarn", mode, ne, whole, **_YARN)
        yield case(f"{name} scaled, other base", mode, ne, whole, freq_base=5e5, freq_scale=0.25)
        if not vision:
            yield case(f"{name} part", mode, ne, 20)
            yield case(f"{name} part in the middle", mode, ne, 16, n_offs=8, factors=True, **_YARN)
        for type in KERNEL_FLOATS:
            yield case(f"{name} {type.name}", mode, (64, 4, 3), 32 if vision else 64, type=type)
        for layout in LAYOUTS[1:]:
            yield case(f"{name} {spell(F32, ne, layout)}", mode, ne, whole, layout=layout)
        for label, more in (("", {}), (", factors and yarn", {"factors": True, **_YARN})):
            for far in _FAR:
                yield case(f"{name} at positions up to {far - 1}{label}", mode, (32, 2, 6), whole, far=far, **more)
        yield case(f"{name} one position", mode, (128, 7, 1), 64 if vision else 128)
    for mode in (RopeMode.NORMAL, RopeMode.NEOX):  # what devices without YaRN have, too
        yield case(f"{mode.name.lower()} middle", mode, (32, 3, 5), 16, n_offs=8, factors=True)
        yield case(f"{mode.name.lower()} stretched", mode, (32, 3, 5), 32, attn_factor=0.7, freq_base=70.25)
    for n in (2, 4, 6, 10, 34, 80, 96, 130):
        yield case(f"rows of {n}", RopeMode.NEOX, (n, 2, 3), n)
        yield case(f"rows of {n}, neighbours", RopeMode.NORMAL, (n, 2, 3), n)
    yield case("all sections", RopeMode.MROPE, (32, 2, 4), 32, sections=(4, 6, 4, 2))
    yield case("sections shorter than the row", RopeMode.MROPE, (64, 2, 4), 64, sections=(4, 3, 3, 0))
