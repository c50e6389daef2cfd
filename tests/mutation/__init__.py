"""Devices with one fault each, as real ones have had.  The suite is worth as much as it finds of these.

``FAULTS`` lists devices that were written with a fault, with the ops, clauses, ``"graph"`` or ``"groups"``, that have
to find each.  :mod:`.byhand` and :mod:`.mechanical` list changes of :mod:`.subject`, a device that conforms.  All of
them together are what ``python -m tests.mutation.score`` puts the suite to.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from ggplug.backend import Buffer, BufferType, Bytes, Group, Plan
from ggplug.ops.elementwise import Add
from ggplug.ops.matrix import MulMat
from ggplug.ops.norms import RowNorm
from ggplug.ops.unary import Unary
from ggplug.patterns import Pattern
from ggplug.types import BF16, F16
from ggplug_testing.contracts.bases import FAR_BYTES
from ggplug_testing.fusing import PATTERNS
from tests.mutation import answers, groups, kernels, layouts, memory, plans, precision, streams
from tests.mutation.fault import Fault


def _kernel(name: str, kernel: kernels.Kernel, *found_by: str) -> Fault:
    return Fault(name, lambda: kernels.FaultyKernels(kernel), found_by)


def _group(
    name: str, kernel: Callable[[Group, groups.Operands], None], patterns: Sequence[Pattern] = PATTERNS
) -> Fault:
    return Fault(name, lambda: groups.OtherKernel(kernel, patterns), ("groups",))


def _memory(name: str, kind: Callable[[BufferType, int], Buffer], *found_by: str) -> Fault:
    return Fault(name, lambda: memory.OtherBuffers(kind), found_by)


def _layout(name: str, kind: Callable[[BufferType, Bytes], Buffer], *found_by: str) -> Fault:
    return Fault(name, lambda: layouts.OtherLayout(layouts.other_buffers(kind)), found_by)


def _plan(name: str, wrap: Callable[[Plan], Plan], *found_by: str) -> Fault:
    return Fault(name, lambda: plans.OtherStreams(wrap), found_by)


FAULTS: tuple[Fault, ...] = (
    _kernel("the last element is wrong", kernels.last_element_wrong, "relu", "mul_mat", "cpy", "argmax", "graph"),
    _kernel("everything is slightly wrong", kernels.slightly_wrong, "add", "mul_mat", "soft_max", "norm"),
    _kernel("computes in half precision", kernels.in_half_precision, "mul_mat", "mul_mat_id"),
    _kernel("writes behind the end", kernels.writes_behind_the_end, "relu", "get_rows", "set_rows"),
    _kernel("writes before the beginning", kernels.writes_before_the_beginning, "relu", "mul_mat"),
    _kernel("leaves the tail of rows", kernels.leaves_the_tail, "silu", "rms_norm", "mul_mat", "rope"),
    _kernel("leaves the last row", kernels.leaves_the_last_row, "silu", "soft_max", "argsort"),
    _kernel("modifies a source", kernels.modifies_a_source, "add", "mul_mat", "rope", "concat"),
    _kernel("ignores strides", kernels.ignores_strides, "add", "norm", "mul_mat", "cont", "repeat"),
    _kernel("ignores offsets of views", kernels.ignores_view_offsets, "add", "mul_mat", "get_rows", "sum_rows"),
    _kernel("broadcasts the first row", kernels.broadcasts_the_first_row, "add", "div"),
    _kernel("clears the result before it reads", kernels.clears_before_it_reads, "add", "silu", "soft_max", "rope"),
    _kernel("claims but raises", kernels.raises, "add", "mul_mat"),
    _kernel("claims but declines", kernels.declines_at_last, "relu"),
    _kernel("writes a row too many", kernels.writes_a_row_too_many, "set_rows"),
    _kernel(
        "keeps rows of ids out of range", kernels.keeps_rows_of_ids_out_of_range, "get_rows", "mul_mat_id", "graph"
    ),
    _kernel("lets a NaN pass", kernels.passes_nan, "relu"),
    _kernel("reads what is not there", kernels.reads_what_is_not_there, "sum", "sum_rows", "mul_mat", "mul_mat_id"),
    _kernel("sorts to one index", kernels.sorts_to_one_index, "argsort"),
    _kernel(
        "moves integers as floats", kernels.moves_integers_as_floats, "cpy", "cont", "dup", "concat", "repeat",
        "get_rows", "set_rows", "set", "pad_reflect_1d", "roll",
    ),
    _kernel("cuts floats as the processor does", kernels.cuts_as_the_processor_does, "cpy", "dup", "set_rows"),
    _kernel("takes the last row of b", kernels.takes_the_last_row_of_b, "mul_mat_id"),
    _memory("memory is not aligned", memory.Misaligned, "buffer types describe their memory"),
    _memory("memset leaves the end", memory.ShortMemset, "memset fills a range"),
    _memory("memset is not checked", memory.UncheckedMemset, "accesses out of bounds raise"),
    _memory("rows are not checked", memory.UncheckedRows, "accesses out of bounds raise"),
    _memory(
        "fetches into anything", memory.FetchesBlindly, "bytes are fetched into writable arrays of bytes"
    ),
    _memory("tensors lie anywhere", memory.PlacesAnywhere, "places are inside of their buffer"),
    Fault(
        "forgets that memory is read-only",
        memory.ForgetsReadOnly,
        ("memory of the host is used in place", "memory that may not be written is refused"),
    ),
    *(
        _memory(f"{method} keeps {bits} bits of offsets", memory.wraps(method, bits), FAR_BYTES)
        for method in ("memset", "copy_from", "set_2d", "get_2d")
        for bits in (31, 32)
    ),
    _memory("rows are packed", memory.PackedRows, "rows are transferred with a stride"),
    _memory(
        "copies from the beginning",
        memory.CopiesFromTheBeginning,
        "buffers copy from each other",
        "copies come from the host",
    ),
    _memory("freeing twice fails", memory.FreesTwice, "a freed buffer refuses use"),
    _memory("frees what is exported", memory.FreesExports, "an exported buffer refuses to be freed"),
    _memory("loses the usage", memory.LosesUsage, "usage is only a mark"),
    Fault("promises memory it does not have", memory.Greedy, ("too much memory raises", "impossible sizes raise")),
    Fault("declines without a reason", lambda: answers.Silent("faulty"), ("every answer has its reason",)),
    Fault("changes its mind", lambda: answers.ChangesItsMind("faulty"), ("support depends on the node alone",)),
    Fault("claims everything", lambda: answers.Boastful("faulty"), ("every answer has its reason",)),
    Fault("refuses views", lambda: answers.RefusesViews("faulty"), ("every answer has its reason",)),
    Fault(
        "raises errors without types",
        lambda: answers.UntypedErrors("faulty"),
        ("errors are typed", "a declined op raises and harms nothing"),
    ),
    _plan("binds once", plans.BindsOnce, "a plan binds to other places"),
    _plan(
        "says nothing of ids out of range", plans.ForgetsFaults, "get_rows", "set_rows", "mul_mat_id", "graph",
        "get_rows_back", "add_id", "ssm_scan", "ids are looked at in each computation",
    ),
    _plan("computes once", plans.ComputesOnce, "a plan computes again with new values"),
    Fault("writes come last", lambda: plans.WritesLast("faulty"), ("set_rows", "cpy", "graph")),
    Fault(
        "writes into read-only memory",
        lambda: plans.WritesAnywhere("faulty"),
        ("memory that may not be written is refused",),
    ),
    Fault(
        "binds plans to any graph", lambda: plans.TakesAnyGraph("faulty"), ("a plan is bound to equal graphs only",)
    ),
    _plan("times run backwards", plans.TimesRunBackwards, "tracing tells when nodes ran"),
    Fault(
        "computes where others write",
        lambda: plans.ClaimsNothing("faulty"),
        ("a write comes before or after the computations of other threads",),
    ),
    Fault("reads do not wait", streams.Impatient, ("synchronous reads wait", "a read waits for held streams")),
    Fault("writes do not wait", streams.Hasty, ("synchronous writes wait", "a write waits for held streams")),
    Fault(
        "streams do not wait for events",
        streams.WithoutEvents,
        ("events order streams", "a held stream holds those that wait for its event"),
    ),
    Fault(
        "the host does not wait for events",
        streams.EventsPassAtOnce,
        ("events can be waited for by the host", "the host waits for the event of a held stream"),
    ),
    Fault("the host does not wait for streams", streams.Returns, ("the host waits for a held stream",)),
    *(
        Fault(f"says that it is synchronous, and {what} is not", partial(streams.Pretends, what), (found_by,))
        for what, found_by in (
            ("compute", "computations of a synchronous device are done when they return"),
            ("set_async", "transfers of a synchronous device are done when they return"),
            ("get_async", "transfers of a synchronous device are done when they return"),
            ("copy_async", "transfers of a synchronous device are done when they return"),
        )
    ),
    Fault(
        "says nothing of its thread",
        streams.PretendsOnHostMemory,
        ("computations of a synchronous device are done when they return",),
    ),
    Fault("errors are raised twice", streams.Repeats, ("a failure is raised by the next synchronize and only once",)),
    Fault("errors are swallowed", streams.Swallows, ("a failure is raised by the next synchronize and only once",)),
    Fault("errors are raised by all streams", streams.Spreads, ("a failure stays with its stream",)),
    Fault("streams share staging memory", streams.SharesStaging, ("held streams share nothing",)),
    Fault(
        "buffers are freed under pending work",
        streams.FreesAtOnce,
        ("a buffer that a held stream uses is freed afterwards",),
    ),
    Fault(
        "copies do not wait for their source",
        streams.CopiesAtOnce,
        ("copies follow the stream that writes their source", "a held stream holds copies of what it writes"),
    ),
    Fault("work is cancelled with its stream", streams.Cancels, ("a held stream is freed afterwards",)),
    Fault("work is cancelled with its plan", streams.CancelsWithPlans, ("work of a held stream outlives its plan",)),
    Fault(
        "streams pass events that are freed",
        streams.ForgetsFreedEvents,
        ("an event that a stream waits for can be freed",),
    ),
    Fault(
        "streams that failed are not freed",
        streams.KeepsWhatFailed,
        ("a failure does not keep its stream from being freed",),
    ),
    Fault("errors are forgotten", streams.Forgetful, ("asynchronous transfers check bounds",)),
    Fault(
        "fetches overtake",
        streams.Reorders,
        ("asynchronous transfers arrive", "a stream keeps its order", "a held stream keeps its order"),
    ),
    Fault(
        "pending work moves with its plan",
        streams.LooksUpLate,
        ("pending work keeps its places", "work of a held stream keeps its places"),
    ),
    Fault(
        "computes products at once", streams.ComputesProductsAtOnce, ("every op of a held stream keeps its order",)
    ),
    Fault("the first launch fails", streams.Stumbles, ("a stream keeps its order", "long graphs compute")),
    _group("rounds only the last result of a group", groups.rounds_only_the_last),
    _group("leaves results that a group keeps", groups.leaves_kept_results),
    _group("writes a group's result before it has read", groups.writes_before_it_reads),
    _group("overwrites the factor of a norm", groups.goes_on_in_its_result(RowNorm), groups.IN_PLACE_OF_ANY),
    _group("overwrites the scale of a sum's norm", groups.goes_on_in_its_result(Add), groups.IN_PLACE_OF_ANY),
    _group("overwrites what a product is added to", groups.goes_on_in_its_result(MulMat)),
    _group("overwrites what a run reads later", groups.goes_on_in_its_result(Unary)),
    _group("takes one order of sources in a group", groups.takes_one_order),
    _group("broadcasts the first row in a group", groups.broadcasts_the_first_row),
    _group("forgets parameters in a group", groups.forgets_parameters),
    _group("uses a source as workspace of a group", groups.spoils_a_source),
    _group("writes results inside of a group somewhere", groups.writes_what_is_inside),
    Fault("takes every result of a group for inside", groups.TakesEverythingInside, ("groups",)),
    Fault("forms groups around what comes in between", groups.LooksAtSourcesOnly, ("groups",)),
    Fault("computes groups too early", groups.RunsAtTheFirstNode, ("groups",)),
    _layout("reads packed tensors as they are stored", layouts.ReadsAsStored, "extra memory keeps weights"),
    _layout("stores parts of packed tensors", layouts.SetsParts, "extra memory shows no bytes"),
    _layout("reads views of packed tensors from the start", layouts.IgnoresOffsets, "extra memory shows no bytes"),
    _layout("shows bytes of packed tensors", layouts.ShowsBytes, "extra memory shows no bytes"),
    Fault(
        "places results in packed memory",
        lambda: layouts.OtherLayout(layouts.TakesResults),
        ("only leafs that were placed lie in extra memory",),
    ),
    Fault(
        "forgets the padding of packed tensors",
        lambda: layouts.OtherLayout(layouts.TooSmall),
        ("extra memory keeps weights",),
    ),
    Fault(
        "computes on packed bytes as if they were plain",
        layouts.ClaimsEverything,
        ("what was not written for a layout is declined",),
    ),
    Fault("binds plans to another layout", layouts.ForgetsTheLayout, ("plans know the layout of weights",)),
    Fault(
        "loses the last row of packed weights",
        layouts.LosesTheLastRow,
        ("products with weights in extra memory are right",),
    ),
    _kernel(
        "rounds results to f16", precision.through(F16), "rms_norm", "rope", "get_rows", "set_rows", "sub", "mul",
        "div", "add", "norm", "sum_rows", "soft_max", "silu", "swiglu", "scale", "concat", "cpy",
    ),
    _kernel("rounds results to bf16", precision.through(BF16), "mul_mat", "mul_mat_id", "gelu", "mean", "repeat"),
    _kernel("cuts results off", precision.stores_by_truncation, "cpy", "dup", "set_rows", "add", "silu", "rms_norm"),
    _kernel("rounds ties away from zero", precision.rounds_ties_away, "cpy", "set_rows", "add", "sub", "mul"),
    _kernel("takes the variance in one pass", precision.one_pass_variance, "norm"),
    _kernel(
        "drops the tail of long rows", precision.drops_the_tail_beyond(4096),
        "mul_mat", "mul_mat_id", "sum_rows", "rms_norm", "soft_max", "argmax",
    ),
    _kernel("angles are rounded to float32", precision.angles_in_float32(0), "rope"),
    _kernel("angles are rounded to float32 beyond position 131071", precision.angles_in_float32(131_071), "rope"),
    _kernel("angles are rounded to float32 beyond position 2^24", precision.angles_in_float32(1 << 24), "rope"),
    _kernel("positions are rounded to float32", precision.positions_in_float32, "rope"),
    _kernel("positions have 20 bits", precision.positions_of(20), "rope"),
    _kernel("positions have 24 bits", precision.positions_of(24), "rope"),
    _kernel(
        "ignores strides of other sources", precision.ignores_strides_of_other_sources,
        "rope", "get_rows", "set_rows", "mul_mat_id", "soft_max", "div",
    ),
    _kernel(
        "ignores offsets of other sources", precision.ignores_offsets_of_other_sources,
        "rope", "get_rows", "set_rows", "mul_mat_id", "soft_max", "swiglu", "add",
    ),
    _kernel("takes a NaN for nothing", precision.skips_nan, "sum_rows", "mul_mat", "norm", "add", "rope"),
    _kernel("stores the largest number for infinity", precision.largest_for_infinity, "cpy", "exp", "mul", "sqr"),
    _kernel("approximates to four digits", precision.approximates, "exp", "tanh", "soft_max", "rope", "gelu"),
    _kernel("adds products up in f16", precision.sums_in(F16), "mul_mat"),
    _kernel("adds products up in bf16", precision.sums_in(BF16), "mul_mat"),
)
"""All faults."""
