"""Losses, and steps of optimisers."""

from __future__ import annotations

from ggplug import ops
from ggplug.tensor import Tensor
from ggplug_cpu.choosing.chooser import Chooser
from ggplug_cpu.choosing.entries import RESULT, Entries, source, source_tensor, tasks
from ggplug_cpu.choosing.nest import Nest, Shape, element_nest, numbered, row_nest, words_of
from ggplug_cpu.choosing.places import reading, writing
from ggplug_cpu.ops.copy.choosers import zero_bytes
from ggplug_cpu.ops.reduce import kernels as reduce
from ggplug_cpu.ops.training import kernels
from ggplug_cpu.parameters import Place, Ref
from ggplug_cpu.tape import WORKSPACE, Entry


def cross_entropy_loss(node: Tensor) -> Entries:
    """The loss of each row, and their sum."""
    logits, labels = source_tensor(node, 0), source_tensor(node, 1)
    if not logits.size:
        return Entries((zero_bytes(node),))
    rows = numbered(row_nest(logits.ne, Shape.of(logits), Shape.of(labels)))
    places = (
        Place(Ref(WORKSPACE)),
        reading(Ref(source(0)), logits.type, logits.nb[0]),
        reading(Ref(source(1)), labels.type, labels.nb[0]),
    )
    words = words_of(kernels.CrossEntropy, rows, *places, count_of_rows=logits.nrows)
    each = Entry(kernels.cross_entropy(), words, tasks(logits.size, 4))
    words = reduce.SumUp.words(y=writing(Ref(RESULT), node.type, 4), sums=Place(Ref(WORKSPACE)), count=logits.nrows)
    return Entries((each, Entry(reduce.sum_up(), words, 1)), 8 * logits.nrows, kernels.scratch_bytes(logits.ne[0]))


def cross_entropy_loss_back(node: Tensor) -> Entries:
    """(softmax(logits) - labels) dy / rows."""
    logits, labels = source_tensor(node, 1), source_tensor(node, 2)
    nest = row_nest(node.ne, *map(Shape.of, (node, logits, labels)))
    places = (
        writing(Ref(RESULT), node.type, node.nb[0]),
        reading(Ref(source(1)), logits.type, logits.nb[0]),
        reading(Ref(source(2)), labels.type, labels.nb[0]),
    )
    own = {"dy": Place(Ref(source(0))), "count_of_rows": node.nrows}
    entry = Entry(
        kernels.cross_entropy_back(), words_of(kernels.CrossEntropyBack, nest, *places, **own), tasks(node.size, 6)
    )
    return Entries((entry,), scratch_bytes=kernels.scratch_bytes(node.ne[0]))


def opt_step_adamw(node: Tensor) -> Entries:
    """Updates w, m and v by the gradient."""
    grad, m, v = (source_tensor(node, i) for i in (1, 2, 3))
    nest = _nest(node, m, v, grad)
    places = [Place(Ref(slot), (4,)) for slot in (RESULT, source(2), source(3), source(1))]
    words = words_of(kernels.Adamw, nest, *places, settings=Place(Ref(source(4))))
    return Entries((Entry(kernels.adamw(), words, tasks(node.size, 4)),))


def opt_step_sgd(node: Tensor) -> Entries:
    """Updates w by the gradient."""
    nest = _nest(node, source_tensor(node, 1))
    places = [Place(Ref(slot), (4,)) for slot in (RESULT, source(1))]
    words = words_of(kernels.Sgd, nest, *places, settings=Place(Ref(source(2))))
    return Entries((Entry(kernels.sgd(), words, tasks(node.size, 2)),))


def _nest(*tensors: Tensor) -> Nest:
    """The loop over tensors with contiguous rows: rows as long as possible."""
    shapes = [Shape.of(tensor) for tensor in tensors]
    nest = element_nest(tensors[0].ne, *shapes)
    return nest if set(nest.inner.strides) == {4} else row_nest(tensors[0].ne, *shapes)


CHOOSERS = (
    Chooser(ops.CrossEntropyLoss, "f32 f32 > f32", cross_entropy_loss),
    Chooser(ops.CrossEntropyLossBack, "f32 f32 f32 > f32", cross_entropy_loss_back),
    Chooser(ops.OptStepAdamw, "f32 f32 f32 f32 f32 > f32", opt_step_adamw),
    Chooser(ops.OptStepSgd, "f32 f32 f32 > f32", opt_step_sgd),
)
