"""Made from the declarations by ``python -m ggplug.ops.listing stub``; a test compares."""

from ggplug.ops.attention import SoftMax, alibi_slopes
from ggplug.ops.base import OPS, Array, Cost, Indexes, Op, apply, builder
from ggplug.ops.convolution import Conv2dDirect, Conv2dDwDirect, Conv3dDirect, ConvTranspose1d, ConvTranspose2d
from ggplug.ops.copy import Concat, Cont, Cpy, Dup, Repeat, add_cast, cast, cont, repeat
from ggplug.ops.custom import (
    Custom4d,
    MapCustom1,
    MapCustom2,
    MapCustom3,
    PythonCall,
    custom_4d,
    custom_inplace,
    map_custom1,
    map_custom1_inplace,
    map_custom2,
    map_custom2_inplace,
    map_custom3,
    map_custom3_inplace,
)
from ggplug.ops.deepseek import Dsv4HcComb, Dsv4HcPost, Dsv4HcPre, Dsv4HcPreGated, LightningIndexer
from ggplug.ops.elementwise import Add, Binary, Div, Mul, Sub, add1
from ggplug.ops.flash_attention import (
    FlashAttnBack,
    FlashAttnExt,
    flash_attn_back,
    flash_attn_back_parts,
    flash_attn_ext,
    flash_attn_ext_add_sinks,
    flash_attn_ext_set_prec,
)
from ggplug.ops.generated import Arange, TimestepEmbedding
from ggplug.ops.glu import Geglu, GegluErf, GegluQuick, Glu, Reglu, Swiglu, SwigluClamp, SwigluOai
from ggplug.ops.gradients import (
    GetRowsBack,
    RepeatBack,
    RmsNormBack,
    RowGradient,
    SiluBack,
    SoftMaxBack,
    get_rows_back,
    repeat_back,
)
from ggplug.ops.im2col import Col2im1d, Im2col, Im2col3d, Im2colBack
from ggplug.ops.interpolation import Interpolate, ScaleMode, upscale
from ggplug.ops.matrix import MulMat, MulMatId, OutProd
from ggplug.ops.norms import GroupNorm, L2Norm, Norm, RmsNorm, RowNorm
from ggplug.ops.padding import Pad, PadReflect1d, Roll, pad, pad_circular, pad_ext, roll
from ggplug.ops.partition import AddRelPos, GetRelPos, WinPart, WinUnpart
from ggplug.ops.pooling import Pool1d, Pool2d, Pool2dBack, PoolKind
from ggplug.ops.recurrent import GatedDeltaNet, GatedLinearAttn, RwkvWkv6, RwkvWkv7, SsmConv, SsmScan
from ggplug.ops.reduce import Argmax, CountEqual, Cumsum, Mean, Sum, SumRows
from ggplug.ops.rotary import Rope, RopeBack, Rotary, rope_multi, rope_multi_back, rope_set_offset
from ggplug.ops.rows import AddId, GetRows, SetRows
from ggplug.ops.sort import Argsort, SortOrder, TopK, argsort_top_k
from ggplug.ops.training import CrossEntropyLoss, CrossEntropyLossBack, OptStepAdamw, OptStepSgd
from ggplug.ops.triangles import Banded, Diag, DiagMask, DiagMaskInf, DiagMaskZero, SolveTri, Tri, TriType
from ggplug.ops.unary import (
    Abs,
    Ceil,
    Clamp,
    Cos,
    Elu,
    Exp,
    Expm1,
    Fill,
    Floor,
    Gelu,
    GeluErf,
    GeluQuick,
    Hardsigmoid,
    Hardswish,
    LeakyRelu,
    Log,
    Neg,
    Relu,
    Round,
    Scale,
    Sgn,
    Sigmoid,
    Silu,
    Sin,
    Softplus,
    Sqr,
    Sqrt,
    Step,
    Tanh,
    Trunc,
    Unary,
    Xielu,
    xielu,
)
from ggplug.ops.unfolded import (
    conv_1d,
    conv_1d_dw,
    conv_1d_dw_ph,
    conv_1d_ph,
    conv_2d,
    conv_2d_dw,
    conv_2d_s1_ph,
    conv_2d_sk_p0,
    conv_3d,
)
from ggplug.ops.views import Permute, Reshape, Transpose, View, permute, reshape, view
from ggplug.ops.windows import (
    Acc,
    Set,
    Window,
    acc,
    acc_inplace,
    set,
    set_1d,
    set_1d_inplace,
    set_2d,
    set_2d_inplace,
    set_inplace,
)
from ggplug.tensor import Tensor
from ggplug.types import Type

__all__ = [
    "OPS",
    "Abs",
    "Acc",
    "Add",
    "AddId",
    "AddRelPos",
    "Arange",
    "Argmax",
    "Argsort",
    "Array",
    "Banded",
    "Binary",
    "Ceil",
    "Clamp",
    "Col2im1d",
    "Concat",
    "Cont",
    "Conv2dDirect",
    "Conv2dDwDirect",
    "Conv3dDirect",
    "ConvTranspose1d",
    "ConvTranspose2d",
    "Cos",
    "Cost",
    "CountEqual",
    "Cpy",
    "CrossEntropyLoss",
    "CrossEntropyLossBack",
    "Cumsum",
    "Custom4d",
    "Diag",
    "DiagMask",
    "DiagMaskInf",
    "DiagMaskZero",
    "Div",
    "Dsv4HcComb",
    "Dsv4HcPost",
    "Dsv4HcPre",
    "Dsv4HcPreGated",
    "Dup",
    "Elu",
    "Exp",
    "Expm1",
    "Fill",
    "FlashAttnBack",
    "FlashAttnExt",
    "Floor",
    "GatedDeltaNet",
    "GatedLinearAttn",
    "Geglu",
    "GegluErf",
    "GegluQuick",
    "Gelu",
    "GeluErf",
    "GeluQuick",
    "GetRelPos",
    "GetRows",
    "GetRowsBack",
    "Glu",
    "GroupNorm",
    "Hardsigmoid",
    "Hardswish",
    "Im2col",
    "Im2col3d",
    "Im2colBack",
    "Indexes",
    "Interpolate",
    "L2Norm",
    "LeakyRelu",
    "LightningIndexer",
    "Log",
    "MapCustom1",
    "MapCustom2",
    "MapCustom3",
    "Mean",
    "Mul",
    "MulMat",
    "MulMatId",
    "Neg",
    "Norm",
    "Op",
    "OptStepAdamw",
    "OptStepSgd",
    "OutProd",
    "Pad",
    "PadReflect1d",
    "Permute",
    "Pool1d",
    "Pool2d",
    "Pool2dBack",
    "PoolKind",
    "PythonCall",
    "Reglu",
    "Relu",
    "Repeat",
    "RepeatBack",
    "Reshape",
    "RmsNorm",
    "RmsNormBack",
    "Roll",
    "Rope",
    "RopeBack",
    "Rotary",
    "Round",
    "RowGradient",
    "RowNorm",
    "RwkvWkv6",
    "RwkvWkv7",
    "Scale",
    "ScaleMode",
    "Set",
    "SetRows",
    "Sgn",
    "Sigmoid",
    "Silu",
    "SiluBack",
    "Sin",
    "SoftMax",
    "SoftMaxBack",
    "Softplus",
    "SolveTri",
    "SortOrder",
    "Sqr",
    "Sqrt",
    "SsmConv",
    "SsmScan",
    "Step",
    "Sub",
    "Sum",
    "SumRows",
    "Swiglu",
    "SwigluClamp",
    "SwigluOai",
    "Tanh",
    "TimestepEmbedding",
    "TopK",
    "Transpose",
    "Tri",
    "TriType",
    "Trunc",
    "Unary",
    "View",
    "WinPart",
    "WinUnpart",
    "Window",
    "Xielu",
    "abs",
    "abs_inplace",
    "acc",
    "acc_inplace",
    "add",
    "add1",
    "add_cast",
    "add_id",
    "add_inplace",
    "add_rel_pos",
    "add_rel_pos_inplace",
    "alibi_slopes",
    "apply",
    "arange",
    "argmax",
    "argsort",
    "argsort_top_k",
    "builder",
    "cast",
    "ceil",
    "ceil_inplace",
    "clamp",
    "col2im_1d",
    "concat",
    "cont",
    "conv_1d",
    "conv_1d_dw",
    "conv_1d_dw_ph",
    "conv_1d_ph",
    "conv_2d",
    "conv_2d_direct",
    "conv_2d_dw",
    "conv_2d_dw_direct",
    "conv_2d_s1_ph",
    "conv_2d_sk_p0",
    "conv_3d",
    "conv_3d_direct",
    "conv_transpose_1d",
    "conv_transpose_2d",
    "cos",
    "cos_inplace",
    "count_equal",
    "cpy",
    "cross_entropy_loss",
    "cross_entropy_loss_back",
    "cumsum",
    "custom_4d",
    "custom_inplace",
    "diag",
    "diag_mask_inf",
    "diag_mask_inf_inplace",
    "diag_mask_zero",
    "diag_mask_zero_inplace",
    "div",
    "div_inplace",
    "dsv4_hc_comb",
    "dsv4_hc_post",
    "dsv4_hc_pre",
    "dsv4_hc_pre_gated",
    "dup",
    "elu",
    "elu_inplace",
    "exp",
    "exp_inplace",
    "expm1",
    "expm1_inplace",
    "fill",
    "fill_inplace",
    "flash_attn_back",
    "flash_attn_back_parts",
    "flash_attn_ext",
    "flash_attn_ext_add_sinks",
    "flash_attn_ext_set_prec",
    "floor",
    "floor_inplace",
    "gated_delta_net",
    "gated_linear_attn",
    "geglu",
    "geglu_erf",
    "geglu_quick",
    "gelu",
    "gelu_erf",
    "gelu_erf_inplace",
    "gelu_inplace",
    "gelu_quick",
    "gelu_quick_inplace",
    "get_rel_pos",
    "get_rows",
    "get_rows_back",
    "group_norm",
    "group_norm_inplace",
    "hardsigmoid",
    "hardswish",
    "im2col",
    "im2col_3d",
    "im2col_back",
    "interpolate",
    "l2_norm",
    "l2_norm_inplace",
    "leaky_relu",
    "leaky_relu_inplace",
    "lightning_indexer",
    "log",
    "log_inplace",
    "map_custom1",
    "map_custom1_inplace",
    "map_custom2",
    "map_custom2_inplace",
    "map_custom3",
    "map_custom3_inplace",
    "mean",
    "mul",
    "mul_inplace",
    "mul_mat",
    "mul_mat_id",
    "neg",
    "neg_inplace",
    "norm",
    "norm_inplace",
    "opt_step_adamw",
    "opt_step_sgd",
    "out_prod",
    "pad",
    "pad_circular",
    "pad_ext",
    "pad_reflect_1d",
    "permute",
    "pool_1d",
    "pool_2d",
    "pool_2d_back",
    "reglu",
    "relu",
    "relu_inplace",
    "repeat",
    "repeat_back",
    "reshape",
    "rms_norm",
    "rms_norm_back",
    "rms_norm_inplace",
    "roll",
    "rope",
    "rope_back",
    "rope_inplace",
    "rope_multi",
    "rope_multi_back",
    "rope_set_offset",
    "round",
    "round_inplace",
    "rwkv_wkv6",
    "rwkv_wkv7",
    "scale",
    "scale_inplace",
    "set",
    "set_1d",
    "set_1d_inplace",
    "set_2d",
    "set_2d_inplace",
    "set_inplace",
    "set_rows",
    "sgn",
    "sgn_inplace",
    "sigmoid",
    "sigmoid_inplace",
    "silu",
    "silu_back",
    "silu_inplace",
    "sin",
    "sin_inplace",
    "soft_max",
    "soft_max_back",
    "soft_max_back_inplace",
    "soft_max_inplace",
    "softplus",
    "softplus_inplace",
    "solve_tri",
    "sqr",
    "sqr_inplace",
    "sqrt",
    "sqrt_inplace",
    "ssm_conv",
    "ssm_scan",
    "step",
    "step_inplace",
    "sub",
    "sub_inplace",
    "sum",
    "sum_rows",
    "swiglu",
    "swiglu_clamp",
    "swiglu_oai",
    "tanh",
    "tanh_inplace",
    "timestep_embedding",
    "top_k",
    "transpose",
    "tri",
    "trunc",
    "trunc_inplace",
    "upscale",
    "view",
    "win_part",
    "win_unpart",
    "xielu",
]

def abs(x: Tensor, *, name: str = "") -> Tensor: ...
def abs_inplace(x: Tensor, *, name: str = "") -> Tensor: ...
def add(a: Tensor, b: Tensor, *, name: str = "") -> Tensor: ...
def add_id(a: Tensor, b: Tensor, ids: Tensor, *, name: str = "") -> Tensor: ...
def add_inplace(a: Tensor, b: Tensor, *, name: str = "") -> Tensor: ...
def add_rel_pos(a: Tensor, pw: Tensor, ph: Tensor, *, name: str = "") -> Tensor: ...
def add_rel_pos_inplace(a: Tensor, pw: Tensor, ph: Tensor, *, name: str = "") -> Tensor: ...
def arange(start: float, stop: float, step: float = 1.0, *, name: str = "") -> Tensor: ...
def argmax(x: Tensor, *, name: str = "") -> Tensor: ...
def argsort(x: Tensor, order: int = 0, *, name: str = "") -> Tensor: ...
def ceil(x: Tensor, *, name: str = "") -> Tensor: ...
def ceil_inplace(x: Tensor, *, name: str = "") -> Tensor: ...
def clamp(x: Tensor, min: float, max: float, *, name: str = "") -> Tensor: ...
def col2im_1d(a: Tensor, s0: int, channels: int, p0: int = 0, *, name: str = "") -> Tensor: ...
def concat(a: Tensor, b: Tensor, dim: int, *, name: str = "") -> Tensor: ...
def conv_2d_direct(
    kernel: Tensor,
    x: Tensor,
    s0: int = 1,
    s1: int = 1,
    p0: int = 0,
    p1: int = 0,
    d0: int = 1,
    d1: int = 1,
    *,
    name: str = "",
) -> Tensor: ...
def conv_2d_dw_direct(
    kernel: Tensor,
    x: Tensor,
    s0: int = 1,
    s1: int = 1,
    p0: int = 0,
    p1: int = 0,
    d0: int = 1,
    d1: int = 1,
    *,
    name: str = "",
) -> Tensor: ...
def conv_3d_direct(
    kernel: Tensor,
    x: Tensor,
    channels: int,
    images: int,
    out_channels: int,
    s0: int = 1,
    s1: int = 1,
    s2: int = 1,
    p0: int = 0,
    p1: int = 0,
    p2: int = 0,
    d0: int = 1,
    d1: int = 1,
    d2: int = 1,
    *,
    name: str = "",
) -> Tensor: ...
def conv_transpose_1d(kernel: Tensor, x: Tensor, s0: int = 1, *, name: str = "") -> Tensor: ...
def conv_transpose_2d(kernel: Tensor, x: Tensor, stride: int = 1, *, name: str = "") -> Tensor: ...
def cos(x: Tensor, *, name: str = "") -> Tensor: ...
def cos_inplace(x: Tensor, *, name: str = "") -> Tensor: ...
def count_equal(a: Tensor, b: Tensor, *, name: str = "") -> Tensor: ...
def cpy(x: Tensor, dst: Tensor, *, name: str = "") -> Tensor: ...
def cross_entropy_loss(logits: Tensor, labels: Tensor, *, name: str = "") -> Tensor: ...
def cross_entropy_loss_back(dy: Tensor, logits: Tensor, labels: Tensor, *, name: str = "") -> Tensor: ...
def cumsum(x: Tensor, *, name: str = "") -> Tensor: ...
def diag(x: Tensor, *, name: str = "") -> Tensor: ...
def diag_mask_inf(x: Tensor, n_past: int, *, name: str = "") -> Tensor: ...
def diag_mask_inf_inplace(x: Tensor, n_past: int, *, name: str = "") -> Tensor: ...
def diag_mask_zero(x: Tensor, n_past: int, *, name: str = "") -> Tensor: ...
def diag_mask_zero_inplace(x: Tensor, n_past: int, *, name: str = "") -> Tensor: ...
def div(a: Tensor, b: Tensor, *, name: str = "") -> Tensor: ...
def div_inplace(a: Tensor, b: Tensor, *, name: str = "") -> Tensor: ...
def dsv4_hc_comb(
    mixes: Tensor,
    scale: Tensor,
    base: Tensor,
    eps: float = 1e-06,
    n_iter: int = 1,
    *,
    name: str = "",
) -> Tensor: ...
def dsv4_hc_post(x: Tensor, residual: Tensor, post: Tensor, comb: Tensor, *, name: str = "") -> Tensor: ...
def dsv4_hc_pre(x: Tensor, weights: Tensor, *, name: str = "") -> Tensor: ...
def dsv4_hc_pre_gated(x: Tensor, gate: Tensor, scale: float = 1.0, *, name: str = "") -> Tensor: ...
def dup(x: Tensor, type: Type | str = "", *, name: str = "") -> Tensor: ...
def elu(x: Tensor, *, name: str = "") -> Tensor: ...
def elu_inplace(x: Tensor, *, name: str = "") -> Tensor: ...
def exp(x: Tensor, *, name: str = "") -> Tensor: ...
def exp_inplace(x: Tensor, *, name: str = "") -> Tensor: ...
def expm1(x: Tensor, *, name: str = "") -> Tensor: ...
def expm1_inplace(x: Tensor, *, name: str = "") -> Tensor: ...
def fill(x: Tensor, value: float, *, name: str = "") -> Tensor: ...
def fill_inplace(x: Tensor, value: float, *, name: str = "") -> Tensor: ...
def floor(x: Tensor, *, name: str = "") -> Tensor: ...
def floor_inplace(x: Tensor, *, name: str = "") -> Tensor: ...
def gated_delta_net(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    state: Tensor,
    snapshots: int = 1,
    *,
    name: str = "",
) -> Tensor: ...
def gated_linear_attn(
    k: Tensor,
    v: Tensor,
    q: Tensor,
    g: Tensor,
    state: Tensor,
    scale: float,
    *,
    name: str = "",
) -> Tensor: ...
def geglu(x: Tensor, gate: Tensor | None = None, swapped: bool = False, *, name: str = "") -> Tensor: ...
def geglu_erf(x: Tensor, gate: Tensor | None = None, swapped: bool = False, *, name: str = "") -> Tensor: ...
def geglu_quick(x: Tensor, gate: Tensor | None = None, swapped: bool = False, *, name: str = "") -> Tensor: ...
def gelu(x: Tensor, *, name: str = "") -> Tensor: ...
def gelu_erf(x: Tensor, *, name: str = "") -> Tensor: ...
def gelu_erf_inplace(x: Tensor, *, name: str = "") -> Tensor: ...
def gelu_inplace(x: Tensor, *, name: str = "") -> Tensor: ...
def gelu_quick(x: Tensor, *, name: str = "") -> Tensor: ...
def gelu_quick_inplace(x: Tensor, *, name: str = "") -> Tensor: ...
def get_rel_pos(x: Tensor, qh: int, kh: int, *, name: str = "") -> Tensor: ...
def get_rows(a: Tensor, ids: Tensor, *, name: str = "") -> Tensor: ...
def group_norm(x: Tensor, n_groups: int, eps: float = 1e-06, *, name: str = "") -> Tensor: ...
def group_norm_inplace(x: Tensor, n_groups: int, eps: float = 1e-06, *, name: str = "") -> Tensor: ...
def hardsigmoid(x: Tensor, *, name: str = "") -> Tensor: ...
def hardswish(x: Tensor, *, name: str = "") -> Tensor: ...
def im2col(
    kernel: Tensor,
    x: Tensor,
    s0: int = 1,
    s1: int = 1,
    p0: int = 0,
    p1: int = 0,
    d0: int = 1,
    d1: int = 1,
    is_2d: bool = True,
    type: Type | str = "f32",
    *,
    name: str = "",
) -> Tensor: ...
def im2col_3d(
    kernel: Tensor,
    x: Tensor,
    channels: int,
    s0: int = 1,
    s1: int = 1,
    s2: int = 1,
    p0: int = 0,
    p1: int = 0,
    p2: int = 0,
    d0: int = 1,
    d1: int = 1,
    d2: int = 1,
    type: Type | str = "f32",
    *,
    name: str = "",
) -> Tensor: ...
def im2col_back(
    grad: Tensor,
    kernel: Tensor,
    s0: int = 1,
    s1: int = 1,
    p0: int = 0,
    p1: int = 0,
    d0: int = 1,
    d1: int = 1,
    is_2d: bool = True,
    ne: tuple[int, ...] = (),
    *,
    name: str = "",
) -> Tensor: ...
def interpolate(x: Tensor, ne: tuple[int, ...], mode: int = 0, *, name: str = "") -> Tensor: ...
def l2_norm(x: Tensor, eps: float = 1e-06, *, name: str = "") -> Tensor: ...
def l2_norm_inplace(x: Tensor, eps: float = 1e-06, *, name: str = "") -> Tensor: ...
def leaky_relu(x: Tensor, negative_slope: float, *, name: str = "") -> Tensor: ...
def leaky_relu_inplace(x: Tensor, negative_slope: float, *, name: str = "") -> Tensor: ...
def lightning_indexer(q: Tensor, k: Tensor, weights: Tensor, mask: Tensor, *, name: str = "") -> Tensor: ...
def log(x: Tensor, *, name: str = "") -> Tensor: ...
def log_inplace(x: Tensor, *, name: str = "") -> Tensor: ...
def mean(x: Tensor, *, name: str = "") -> Tensor: ...
def mul(a: Tensor, b: Tensor, *, name: str = "") -> Tensor: ...
def mul_inplace(a: Tensor, b: Tensor, *, name: str = "") -> Tensor: ...
def mul_mat(a: Tensor, b: Tensor, precision: int = 0, *, name: str = "") -> Tensor: ...
def mul_mat_id(as_: Tensor, b: Tensor, ids: Tensor, precision: int = 0, *, name: str = "") -> Tensor: ...
def neg(x: Tensor, *, name: str = "") -> Tensor: ...
def neg_inplace(x: Tensor, *, name: str = "") -> Tensor: ...
def norm(x: Tensor, eps: float = 1e-06, *, name: str = "") -> Tensor: ...
def norm_inplace(x: Tensor, eps: float = 1e-06, *, name: str = "") -> Tensor: ...
def opt_step_adamw(w: Tensor, grad: Tensor, m: Tensor, v: Tensor, params: Tensor, *, name: str = "") -> Tensor: ...
def opt_step_sgd(w: Tensor, grad: Tensor, params: Tensor, *, name: str = "") -> Tensor: ...
def out_prod(a: Tensor, b: Tensor, *, name: str = "") -> Tensor: ...
def pad_reflect_1d(x: Tensor, p0: int, p1: int, *, name: str = "") -> Tensor: ...
def pool_1d(x: Tensor, kind: int, k0: int, s0: int = 1, p0: int = 0, *, name: str = "") -> Tensor: ...
def pool_2d(
    x: Tensor,
    kind: int,
    k0: int,
    k1: int,
    s0: int = 1,
    s1: int = 1,
    p0: float = 0.0,
    p1: float = 0.0,
    *,
    name: str = "",
) -> Tensor: ...
def pool_2d_back(
    grad: Tensor,
    x: Tensor,
    kind: int,
    k0: int,
    k1: int,
    s0: int = 1,
    s1: int = 1,
    p0: float = 0.0,
    p1: float = 0.0,
    *,
    name: str = "",
) -> Tensor: ...
def reglu(x: Tensor, gate: Tensor | None = None, swapped: bool = False, *, name: str = "") -> Tensor: ...
def relu(x: Tensor, *, name: str = "") -> Tensor: ...
def relu_inplace(x: Tensor, *, name: str = "") -> Tensor: ...
def rms_norm(x: Tensor, eps: float = 1e-06, *, name: str = "") -> Tensor: ...
def rms_norm_back(dy: Tensor, x: Tensor, eps: float = 1e-06, *, name: str = "") -> Tensor: ...
def rms_norm_inplace(x: Tensor, eps: float = 1e-06, *, name: str = "") -> Tensor: ...
def rope(
    x: Tensor,
    pos: Tensor,
    n_dims: int,
    freq_factors: Tensor | None = None,
    mode: int = 0,
    n_ctx_orig: int = 0,
    freq_base: float = 10000.0,
    freq_scale: float = 1.0,
    ext_factor: float = 0.0,
    attn_factor: float = 1.0,
    beta_fast: float = 32.0,
    beta_slow: float = 1.0,
    sections: tuple[int, ...] = (0, 0, 0, 0),
    n_offs: int = 0,
    *,
    name: str = "",
) -> Tensor: ...
def rope_back(
    x: Tensor,
    pos: Tensor,
    n_dims: int,
    freq_factors: Tensor | None = None,
    mode: int = 0,
    n_ctx_orig: int = 0,
    freq_base: float = 10000.0,
    freq_scale: float = 1.0,
    ext_factor: float = 0.0,
    attn_factor: float = 1.0,
    beta_fast: float = 32.0,
    beta_slow: float = 1.0,
    sections: tuple[int, ...] = (0, 0, 0, 0),
    n_offs: int = 0,
    *,
    name: str = "",
) -> Tensor: ...
def rope_inplace(
    x: Tensor,
    pos: Tensor,
    n_dims: int,
    freq_factors: Tensor | None = None,
    mode: int = 0,
    n_ctx_orig: int = 0,
    freq_base: float = 10000.0,
    freq_scale: float = 1.0,
    ext_factor: float = 0.0,
    attn_factor: float = 1.0,
    beta_fast: float = 32.0,
    beta_slow: float = 1.0,
    sections: tuple[int, ...] = (0, 0, 0, 0),
    n_offs: int = 0,
    *,
    name: str = "",
) -> Tensor: ...
def round(x: Tensor, *, name: str = "") -> Tensor: ...
def round_inplace(x: Tensor, *, name: str = "") -> Tensor: ...
def rwkv_wkv6(k: Tensor, v: Tensor, r: Tensor, tf: Tensor, td: Tensor, state: Tensor, *, name: str = "") -> Tensor: ...
def rwkv_wkv7(
    r: Tensor,
    w: Tensor,
    k: Tensor,
    v: Tensor,
    a: Tensor,
    b: Tensor,
    state: Tensor,
    *,
    name: str = "",
) -> Tensor: ...
def scale(x: Tensor, s: float, bias: float = 0.0, *, name: str = "") -> Tensor: ...
def scale_inplace(x: Tensor, s: float, bias: float = 0.0, *, name: str = "") -> Tensor: ...
def set_rows(dst: Tensor, rows: Tensor, ids: Tensor, *, name: str = "") -> Tensor: ...
def sgn(x: Tensor, *, name: str = "") -> Tensor: ...
def sgn_inplace(x: Tensor, *, name: str = "") -> Tensor: ...
def sigmoid(x: Tensor, *, name: str = "") -> Tensor: ...
def sigmoid_inplace(x: Tensor, *, name: str = "") -> Tensor: ...
def silu(x: Tensor, *, name: str = "") -> Tensor: ...
def silu_back(a: Tensor, b: Tensor, *, name: str = "") -> Tensor: ...
def silu_inplace(x: Tensor, *, name: str = "") -> Tensor: ...
def sin(x: Tensor, *, name: str = "") -> Tensor: ...
def sin_inplace(x: Tensor, *, name: str = "") -> Tensor: ...
def soft_max(
    x: Tensor,
    mask: Tensor | None = None,
    sinks: Tensor | None = None,
    scale: float = 1.0,
    max_bias: float = 0.0,
    *,
    name: str = "",
) -> Tensor: ...
def soft_max_back(dy: Tensor, y: Tensor, scale: float = 1.0, max_bias: float = 0.0, *, name: str = "") -> Tensor: ...
def soft_max_back_inplace(
    dy: Tensor,
    y: Tensor,
    scale: float = 1.0,
    max_bias: float = 0.0,
    *,
    name: str = "",
) -> Tensor: ...
def soft_max_inplace(
    x: Tensor,
    mask: Tensor | None = None,
    sinks: Tensor | None = None,
    scale: float = 1.0,
    max_bias: float = 0.0,
    *,
    name: str = "",
) -> Tensor: ...
def softplus(x: Tensor, *, name: str = "") -> Tensor: ...
def softplus_inplace(x: Tensor, *, name: str = "") -> Tensor: ...
def solve_tri(a: Tensor, b: Tensor, *, name: str = "") -> Tensor: ...
def sqr(x: Tensor, *, name: str = "") -> Tensor: ...
def sqr_inplace(x: Tensor, *, name: str = "") -> Tensor: ...
def sqrt(x: Tensor, *, name: str = "") -> Tensor: ...
def sqrt_inplace(x: Tensor, *, name: str = "") -> Tensor: ...
def ssm_conv(x: Tensor, kernel: Tensor, *, name: str = "") -> Tensor: ...
def ssm_scan(
    s: Tensor,
    x: Tensor,
    dt: Tensor,
    a: Tensor,
    b: Tensor,
    c: Tensor,
    ids: Tensor,
    snapshots: int = 1,
    *,
    name: str = "",
) -> Tensor: ...
def step(x: Tensor, *, name: str = "") -> Tensor: ...
def step_inplace(x: Tensor, *, name: str = "") -> Tensor: ...
def sub(a: Tensor, b: Tensor, *, name: str = "") -> Tensor: ...
def sub_inplace(a: Tensor, b: Tensor, *, name: str = "") -> Tensor: ...
def sum(x: Tensor, *, name: str = "") -> Tensor: ...
def sum_rows(x: Tensor, *, name: str = "") -> Tensor: ...
def swiglu(x: Tensor, gate: Tensor | None = None, swapped: bool = False, *, name: str = "") -> Tensor: ...
def swiglu_clamp(
    x: Tensor,
    gate: Tensor | None = None,
    swapped: bool = False,
    limit: float = 10.0,
    *,
    name: str = "",
) -> Tensor: ...
def swiglu_oai(
    x: Tensor,
    gate: Tensor | None = None,
    swapped: bool = False,
    alpha: float = 1.702,
    limit: float = 7.0,
    *,
    name: str = "",
) -> Tensor: ...
def tanh(x: Tensor, *, name: str = "") -> Tensor: ...
def tanh_inplace(x: Tensor, *, name: str = "") -> Tensor: ...
def timestep_embedding(x: Tensor, dim: int, max_period: int = 10000, *, name: str = "") -> Tensor: ...
def top_k(x: Tensor, k: int, *, name: str = "") -> Tensor: ...
def transpose(x: Tensor, *, name: str = "") -> Tensor: ...
def tri(x: Tensor, type: int, *, name: str = "") -> Tensor: ...
def trunc(x: Tensor, *, name: str = "") -> Tensor: ...
def trunc_inplace(x: Tensor, *, name: str = "") -> Tensor: ...
def win_part(x: Tensor, w: int, *, name: str = "") -> Tensor: ...
def win_unpart(x: Tensor, w0: int, h0: int, w: int, *, name: str = "") -> Tensor: ...
