"""The rows of Mamba's modules, and what their conversion changes."""

from __future__ import annotations

import re

from ggplug_models.converting.delta_net import PLAIN_DECAY, PLAIN_KERNEL
from ggplug_models.converting.family import Array, Change, Tensors
from ggplug_models.converting.rows import LAYER, layer, layers
from ggplug_models.metadata.values import Values

MAX_POSITION = 2**20
"""The context length that files say of models whose blocks have no limit."""


def _column(values: Array, config: Values) -> Array:
    return values.reshape(-1, 1)


COLUMN = Change(_column, lambda shape, config: (shape[0], 1))
DECAY_COLUMN = Change(lambda values, config: _column(PLAIN_DECAY.apply(values, config), config), COLUMN.shape)


def in_groups(setting: str) -> Change:
    """A norm of each group, with the groups as rows.  ``setting``: says their number."""

    def rows(values: Array, config: Values) -> Array:
        n = config.integer(setting, 1)
        if values.size % n:
            raise config.refused(setting, f"a divisor of the {values.size} weights of a norm")
        return values.reshape(n, -1)

    return Change(rows, lambda shape, config: (n := config.integer(setting, 1), shape[0] // n))


def convolution(module: str) -> tuple[Tensors, ...]:
    name = rf"{LAYER}{re.escape(module)}\.conv1d"
    return (
        Tensors(rf"{name}\.weight", r"blk.\1.ssm_conv1d.weight", PLAIN_KERNEL),
        Tensors(rf"{name}\.bias", r"blk.\1.ssm_conv1d.bias"),
    )


def mamba(module: str) -> tuple[Tensors, ...]:
    """The rows of Mamba 1.  ``module``: its name in a layer."""
    return (
        *layers({f"{module}.{name}_proj": f"ssm_{name}" for name in ("in", "x", "dt", "out")}),
        *layers({f"{module}.{name}_layernorm": f"ssm_{name}_norm" for name in ("dt", "b", "c")}),
        *convolution(module),
        Tensors(rf"{LAYER}{module}\.A_log", r"blk.\1.ssm_a", PLAIN_DECAY),
        Tensors(rf"{LAYER}{module}\.D", r"blk.\1.ssm_d"),
    )


def mamba2(module: str, groups: str) -> tuple[Tensors, ...]:
    """The rows of Mamba 2.  ``module``: its name in a layer.  ``groups``: the setting with the number of groups."""
    return (
        *layers({f"{module}.in_proj": "ssm_in", f"{module}.out_proj": "ssm_out"}),
        *convolution(module),
        layer(f"{module}.norm", "ssm_norm", in_groups(groups)),
        Tensors(rf"{LAYER}{module}\.A_log", r"blk.\1.ssm_a", DECAY_COLUMN),
        Tensors(rf"{LAYER}{module}\.D", r"blk.\1.ssm_d", COLUMN),
        Tensors(rf"{LAYER}{module}\.dt_bias", r"blk.\1.ssm_dt.bias"),
    )
