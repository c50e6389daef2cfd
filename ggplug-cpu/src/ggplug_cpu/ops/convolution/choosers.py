"""Convolutions as matrix products of windows of the image and rows of the kernel; the product packs the windows itself.

A transposed convolution is a convolution of a stretched image, which has zeros between its elements.
"""

from __future__ import annotations

from collections.abc import Sequence

from ggplug import ops
from ggplug.backend import Decline
from ggplug.ops.sliding import Axis
from ggplug.tensor import Extents, Tensor
from ggplug_cpu.choosing.chooser import Chooser
from ggplug_cpu.choosing.entries import RESULT, Entries, source, source_tensor, tasks
from ggplug_cpu.choosing.places import writing
from ggplug_cpu.ops.convolution.im2col import Im2col, scratch_bytes
from ggplug_cpu.ops.convolution.im2col import im2col as im2col_kernel
from ggplug_cpu.ops.convolution.stretched import Stretched, conv_transpose_nonfinite
from ggplug_cpu.ops.copy.ready import Ready, in_f32, in_workspace
from ggplug_cpu.ops.mul_mat import gemm
from ggplug_cpu.ops.mul_mat.layout import PANEL_BYTES, layout
from ggplug_cpu.ops.mul_mat.rows import Product
from ggplug_cpu.ops.mul_mat.weights import pack_panels
from ggplug_cpu.parameters import Place, Ref, Words
from ggplug_cpu.parts.sliding import Sliding
from ggplug_cpu.tape import Entry

#: Offsets within an image are int32.
_FARTHEST = 1 << 31
#: Number of chunks of a product, which threads take one after the other.
_CHUNKS = 48
#: Rows of the kernel that a packed block of windows should at least serve.
_LEAST_ROWS = 48
#: Multiplications and additions in a tile that cost as much as one simple operation on an element.
_PER_ELEMENT = 8


def conv_2d(node: Tensor) -> Entries | Decline:
    """y[:, :, o, n] = windows of x[:, :, :, n] by kernel[:, :, :, o]."""
    op, kernel, x = node.op, source_tensor(node, 0), source_tensor(node, 1)
    assert isinstance(op, ops.Conv2dDirect)
    axes = op.axes(kernel.ne[0], kernel.ne[1])
    return _product(node, _rows(kernel, kernel.ne), axes, x, x.nb[2], x.nb[3], x.ne[3], node.nb[2], node.nb[3])


def conv_3d(node: Tensor) -> Entries | Decline:
    """y[..., (n, o)] = windows of x[..., (n, :)] by kernel[..., (o, :)]."""
    op, kernel, x = node.op, source_tensor(node, 0), source_tensor(node, 1)
    assert isinstance(op, ops.Conv3dDirect)
    axes = op.axes(kernel.ne[:3])
    out = op.out_channels
    return _product(
        node,
        _rows(kernel, kernel.ne, out),
        axes,
        x,
        x.nb[3],
        op.channels * x.nb[3],
        op.images,
        node.nb[3],
        out * node.nb[3],
    )


def conv_transpose_1d(node: Tensor) -> Entries | Decline:
    """y[:, o] = windows of x, stretched, by kernel[:, o, :]."""
    op, kernel, x = node.op, source_tensor(node, 0), source_tensor(node, 1)
    assert isinstance(op, ops.ConvTranspose1d)
    permuted = (kernel.ne[0], kernel.ne[2], kernel.ne[1], 1)
    nb = (kernel.nb[0], kernel.nb[2], kernel.nb[1], kernel.nb[3])
    weights = in_workspace(kernel.type, kernel.type, permuted, Ref(source(0)), nb, 0)
    weights = _as_rows(weights, permuted[0] * permuted[1], permuted[2])
    axes = [Axis(kernel.ne[0], op.s0)]
    made = _product(node, weights, axes, x, x.nb[1], 0, 1, node.nb[1], 0, transposed=True)
    y = Place(Ref(RESULT), (4, 0, node.nb[1], 0))
    image = Place(Ref(source(1)), (x.nb[0], 0, x.nb[1], 0))
    return _without_zeros(made, kernel, weights, y, image, (x.ne[0], 1, x.ne[1], 1), (kernel.ne[0], 1), op.s0)


def conv_transpose_2d(node: Tensor) -> Entries | Decline:
    """y[:, :, o, n] = windows of x[:, :, :, n], stretched, by kernel[:, :, o, :]."""
    op, kernel, x = node.op, source_tensor(node, 0), source_tensor(node, 1)
    assert isinstance(op, ops.ConvTranspose2d)
    permuted = (kernel.ne[0], kernel.ne[1], kernel.ne[3], kernel.ne[2])
    nb = (kernel.nb[0], kernel.nb[1], kernel.nb[3], kernel.nb[2])
    weights = in_workspace(kernel.type, kernel.type, permuted, Ref(source(0)), nb, 0)
    weights = _as_rows(weights, permuted[0] * permuted[1] * permuted[2], permuted[3])
    axes = [Axis(kernel.ne[0], op.stride), Axis(kernel.ne[1], op.stride)]
    made = _product(node, weights, axes, x, x.nb[2], x.nb[3], x.ne[3], node.nb[2], node.nb[3], transposed=True)
    y, image = Place(Ref(RESULT), node.nb), Place(Ref(source(1)), x.nb)
    return _without_zeros(made, kernel, weights, y, image, x.ne, kernel.ne[:2], op.stride)


def _without_zeros(
    made: Entries | Decline,
    kernel: Tensor,
    rows: Ready,
    y: Place,
    x: Place,
    ne: Extents,
    taps: tuple[int, int],
    stride: int,
) -> Entries | Decline:
    """The entries ``made``, and one that computes again the channels whose kernel has a NaN or an infinity.

    ``ne``: extents of x; ``taps``: extents of a window; ``stride``: distance of windows.
    """
    if isinstance(made, Decline):
        return made
    words = Stretched.words(
        y=y,
        x=x,
        rows=rows.as_place(),
        channels=ne[2],
        width=ne[0],
        height=ne[1],
        taps0=taps[0],
        taps1=taps[1],
        stride=stride,
        out=rows.ne[1],
        images=ne[3],
    )
    entry = Entry(conv_transpose_nonfinite(kernel.type.name), words, tasks(kernel.size), barrier_before=True)
    return Entries((*made.entries, entry), made.workspace_bytes, made.scratch_bytes)


def im2col(node: Tensor) -> Entries | Decline:
    """y[:, window] = the elements of x in a window."""
    op, kernel, x = node.op, source_tensor(node, 0), source_tensor(node, 1)
    assert isinstance(op, ops.Im2col)
    image = in_f32(x, Ref(source(1)))
    across, down = op.axes(kernel)
    if op.is_2d:
        nb, extents = (image.nb[0], image.nb[1]), x.ne[:2]
        channel, image_bytes, windows = image.nb[2], image.nb[3], node.ne[1:3]
    else:
        nb, extents = (image.nb[0], 0), (x.ne[0], 1)
        channel, image_bytes, windows = image.nb[1], image.nb[2], (node.ne[1], 1)
    sliding = _sliding([across, down], extents, windows, nb, channel)
    return _im2col(node, image, sliding, windows[0] * windows[1], image_bytes)


def im2col_3d(node: Tensor) -> Entries | Decline:
    """y[:, window] = the elements of x in a window of a volume."""
    op, kernel, x = node.op, source_tensor(node, 0), source_tensor(node, 1)
    assert isinstance(op, ops.Im2col3d)
    image = in_f32(x, Ref(source(1)))
    axes = op.axes(kernel.ne[:3])
    windows = node.ne[1], node.ne[2], axes[2].count(x.ne[2])
    sliding = _sliding(axes, x.ne[:3], windows, image.nb[:3], image.nb[3])
    return _im2col(node, image, sliding, windows[0] * windows[1] * windows[2], op.channels * image.nb[3])


def _im2col(node: Tensor, image: Ready, sliding: Words | Decline, of_image: int, image_bytes: int) -> Entries | Decline:
    if isinstance(sliding, Decline):
        return sliding
    words = Im2col.words(
        y=writing(Ref(RESULT), node.type, node.nb[0]),
        x=image.as_place(),
        n=node.ne[0],
        rows=node.nrows,
        rows_of_image=of_image,
        row_bytes=node.nb[1],
        image_bytes=image_bytes,
    )
    entry = Entry(im2col_kernel(), words.followed_by(sliding), tasks(node.size, 4))
    scratch = max(scratch_bytes(node.ne[0]), image.scratch_bytes)
    return Entries((*image.entries, entry), image.workspace_bytes, scratch)


def _sliding(
    axes: Sequence[Axis],
    extents: Sequence[int],
    windows: Sequence[int],
    nb: Sequence[int],
    channel: int,
    *,
    transposed: bool = False,
) -> Words | Decline:
    """The parameters of windows along one to three axes."""
    farthest = sum(
        abs(stride) * (extent + axis.padding + axis.dilation * axis.taps + axis.stride)
        for axis, extent, stride in zip(axes, extents, nb, strict=False)
    )
    taps = 1
    for axis in axes:
        taps *= axis.taps
    if farthest >= _FARTHEST:
        return Decline("images of 2 GiB and more are not gathered on the CPU")
    values = {"windows0": windows[0], "windows1": windows[1] if len(windows) > 1 else 1, "channel": channel}
    for i in range(3):
        axis = axes[i] if i < len(axes) else Axis(1)
        values |= {
            f"extent{i}": extents[i] if i < len(axes) else 1,
            f"nb{i}": nb[i] if i < len(axes) else 0,
            f"taps{i}": axis.taps,
            f"stride{i}": 1 if transposed else axis.stride,
            f"padding{i}": -axis.padding if transposed else axis.padding,
            f"dilation{i}": -axis.dilation if transposed else axis.dilation,
            f"quotient{i}": axis.stride if transposed else 1,
        }
    return Sliding.words(**values)


def _rows(kernel: Tensor, ne: Extents, rows: int = 0) -> Ready:
    """The kernel as rows of contiguous numbers: in place, or copied."""
    count = rows or ne[3]
    numbers = kernel.size // max(1, count)
    if kernel.is_contiguous():
        return _as_rows(Ready(Ref(source(0)), ne, kernel.nb), numbers, count, kernel.type.block_bytes)
    ready = in_workspace(kernel.type, kernel.type, ne, Ref(source(0)), kernel.nb, 0)
    return _as_rows(ready, numbers, count)


def _as_rows(ready: Ready, numbers: int, rows: int, size: int = 0) -> Ready:
    size = size or ready.nb[0]
    nb = (size, size * numbers, 0, 0)
    return Ready(ready.place, (numbers, rows, 1, 1), nb, ready.entries, ready.workspace_bytes, ready.scratch_bytes)


def _product(
    node: Tensor,
    rows: Ready,
    axes: Sequence[Axis],
    x: Tensor,
    channel: int,
    image_bytes: int,
    images: int,
    out_bytes: int,
    out_image_bytes: int,
    *,
    transposed: bool = False,
) -> Entries | Decline:
    """The product of the windows of ``images`` images and the rows of a kernel.

    ``channel`` and ``image_bytes``: strides of channels and images of x; ``out_bytes`` and ``out_image_bytes``: the
    same of the result, in which neighbouring windows are contiguous.
    """
    dims, kind = len(axes), "f32"
    windows = node.ne[:dims]
    sliding = _sliding(axes, x.ne[:dims], windows, x.nb[:dims], channel, transposed=transposed)
    if isinstance(sliding, Decline):
        return sliding
    numbers, out = rows.ne[0], rows.ne[1]
    count = 1
    for extent in windows:
        count *= extent
    shape = layout(kind)
    k_block = shape.k_block(numbers, count)
    m_block, v_block = _blocks(count, out, images, shape.panel_bytes(min(numbers, k_block)))
    x_offset, scratch = gemm.scratch_plan(kind, m_block, k_block)
    order = "stretched windows" if transposed and any(axis.stride > 1 for axis in axes) else "windows"
    words = Product.words(
        weights=Place(Ref(source(1)), (x.nb[0], 0, image_bytes, 0)),
        activations=rows.as_place(),
        result=Place(Ref(RESULT), (4, out_bytes, out_image_bytes, 0)),
        K=numbers,
        M=count,
        matrices=images,
        rows=out,
        ne02=max(1, images),
        ne11=out,
        r2=1,
        r3=1,
        m_block=m_block,
        v_block=v_block,
        k_block=k_block,
        x_offset=x_offset,
        pack=pack_panels(kind, "f32", order),
        routes=Place(),
        least=1,
        most=out,
        epilogue=0,
        epilogue_words=0,
        residual=Place(),
        bias=Place(),
    )
    kernel = gemm.mul_mat_gemm(kind, source_tensor(node, 0).type.name)
    entry = Entry(kernel, words.followed_by(sliding), tasks(numbers * node.size // _PER_ELEMENT))
    return Entries((*rows.entries, entry), rows.workspace_bytes, max(scratch, rows.scratch_bytes))


def _blocks(windows: int, rows: int, images: int, panel_bytes: int) -> tuple[int, int]:
    """(windows, rows of the kernel) of a chunk; windows are packed again for each chunk of rows."""
    shape = layout("f32")
    panels = -(-windows // shape.columns)
    m_chunks = max(-(-panels // max(1, PANEL_BYTES // max(1, panel_bytes))), min(panels, -(-_CHUNKS // images)))
    v_chunks = max(1, min(-(-_CHUNKS // (images * m_chunks)), rows // _LEAST_ROWS))
    v_block = -(-rows // v_chunks)
    return -(-panels // m_chunks) * shape.columns, -(-v_block // shape.rows) * shape.rows


CHOOSERS = (
    Chooser(ops.Im2col, "float float > float", im2col),
    Chooser(ops.Im2col3d, "float float > float", im2col_3d),
    Chooser(ops.Conv2dDirect, "float f32 > f32", conv_2d),
    Chooser(ops.Conv3dDirect, "float f32 > f32", conv_3d),
    Chooser(ops.ConvTranspose1d, "float f32 > f32", conv_transpose_1d),
    Chooser(ops.ConvTranspose2d, "float f32 > f32", conv_transpose_2d),
)
