"""Faults by hand that came with the port of a backend: what streams share, where plans are bound, what plans tell.

An author who had ported a backend made them there; here they are in the subject.
"""

from __future__ import annotations

from tests.mutation.byhand_kernels import edits
from tests.mutation.fault import Fault
from tests.mutation.seeding import SUBJECT

_formula, _kernel = edits(f"{SUBJECT}.formulas"), edits(f"{SUBJECT}.kernels")
_buffer, _device = edits(f"{SUBJECT}.memory"), edits(f"{SUBJECT}.device")
_queue, _plan, _kit_memory = (
    edits("ggplug.discrete.queue"),
    edits("ggplug.discrete.plan"),
    edits("ggplug.discrete.memory"),
)

_KEPT = 'globals().setdefault("_scratch", {}).setdefault'

_SCRATCH = (
    _kernel(
        "adds up products in scratch of all streams",
        "multiply",
        "    found = np.zeros((len(columns), len(rows)), np.float32)\n",
        f"    found = {_KEPT}((len(columns), len(rows)), np.zeros((len(columns), len(rows)), np.float32))\n"
        "    found[...] = 0\n",
    ),
    _kernel(
        "copies the columns of products into scratch of all streams",
        "mul_mat",
        "single(b)))",
        f"(lambda x: (lambda kept: (np.copyto(kept, x), kept)[1])({_KEPT}(x.shape, x.copy())))(single(b))))",
    ),
    _kernel(
        "copies what is turned into scratch of all streams",
        "rope",
        "    values = wide(x)\n",
        f"    values = {_KEPT}(x.bits.shape, np.zeros(x.bits.shape))\n    values[...] = wide(x)\n",
    ),
    _kernel(
        "widens sources into scratch of all streams",
        "of_two",
        "    store(dst, formula(op, wide(a), repeated(wide(b), a.bits.shape)))",
        f"    kept = {_KEPT}(a.bits.shape, np.zeros(a.bits.shape))\n"
        "    kept[...] = wide(a)\n"
        "    store(dst, formula(op, kept, repeated(wide(b), a.bits.shape)))",
    ),
    _kit_memory(
        "copies by way of staging memory of all streams",
        "DiscreteBuffer.copy",
        "staging = np.empty(size, np.uint8)",
        f"staging = {_KEPT}(size, np.empty(size, np.uint8))",
    ),
    _plan(
        "shares the operands of a launch between plans",
        "QueuedPlan._give",
        "        def run() -> None:\n",
        "        shared = self.stream.device.__dict__.setdefault('_launch', [])\n"
        "        shared[:] = calls\n"
        "        calls = shared\n\n"
        "        def run() -> None:\n",
    ),
)

_REBOUND = "        made: dict[Tensor, Any] = {}"


def _unless_same(name: str, key: str) -> Fault:
    """A plan that is not bound anew where ``key`` is what it was."""
    return _plan(
        name,
        "QueuedPlan.rebind",
        _REBOUND,
        f"        key = {key}\n"
        "        if self._bound is not None and getattr(self, '_key', None) == key:\n"
        "            return\n"
        f"        self._key = key\n{_REBOUND}",
    )


_EACH = "[(id(place[0]), place[1]) for place in places if place]"

_PLACES = (
    _unless_same("takes the same places in another order for the same", f"sorted({_EACH})"),
    _unless_same("compares places by a sum", f"sum(map(hash, {_EACH}))"),
    _unless_same("compares the places of results only", f"{_EACH}[-len(graph.nodes) :]"),
    _unless_same("compares the first place and the last", f"{_EACH}[:: len(places) - 1 or 1]"),
    _unless_same("compares offsets, and which buffers there are", "(offsets.tolist(), sorted(map(id, used.values())))"),
    _unless_same(
        "compares which offsets and buffers there are", "(sorted(offsets.tolist()), sorted(map(id, used.values())))"
    ),
)

_TOLD = (
    _plan(
        "tells kernels from the last to the first",
        "QueuedPlan.kernel_names",
        "in self._kernels]",
        "in self._kernels[::-1]]",
    ),
    _plan("does not tell the last kernel", "QueuedPlan.kernel_names", "in self._kernels]", "in self._kernels[:-1]]"),
    _plan("does not tell the first kernel", "QueuedPlan.kernel_names", "in self._kernels]", "in self._kernels[1:]]"),
    _plan("tells each kernel once", "QueuedPlan.kernel_names", "in self._kernels]", "in dict.fromkeys(self._kernels)]"),
    _plan(
        "tells the time of the last node only",
        "QueuedPlan.compute_traced",
        "return self._times",
        "return self._times[-1:]",
    ),
    _plan(
        "does not tell the time of the last node",
        "QueuedPlan.compute_traced",
        "return self._times",
        "return self._times[:-1]",
    ),
    _plan(
        "tells the times of nodes in the order of their names",
        "QueuedPlan.compute_traced",
        "return self._times",
        "return [t._replace(node=o.node) for t, o in zip(self._times, self._times[::-1])]",
    ),
    _plan(
        "tells when the computation before ran",
        "QueuedPlan.compute_traced",
        "return self._times",
        "before, self._before = getattr(self, '_before', None), self._times\n        return before or self._times",
    ),
)

_OVERLAPPING = (
    _queue(
        "copies forwards where the bytes of a stream's copy overlap",
        "QueuedBackend.copy_async",
        "            job = self.give(lambda: own.copy(source, start, to, count), after=after)",
        "            def forwards() -> None:\n"
        "                for done in range(count if source is own else 0):\n"
        "                    own.copy(source, start + done, to + done, 1)\n"
        "                if source is not own:\n"
        "                    own.copy(source, start, to, count)\n\n"
        "            job = self.give(forwards, after=after)",
    ),
    _queue(
        "copies backwards where the bytes of a stream's copy overlap",
        "QueuedBackend.copy_async",
        "            job = self.give(lambda: own.copy(source, start, to, count), after=after)",
        "            def backwards() -> None:\n"
        "                for done in reversed(range(count if source is own else 0)):\n"
        "                    own.copy(source, start + done, to + done, 1)\n"
        "                if source is not own:\n"
        "                    own.copy(source, start, to, count)\n\n"
        "            job = self.give(backwards, after=after)",
    ),
)

FAULTS: tuple[Fault, ...] = (*_SCRATCH, *_PLACES, *_TOLD, *_OVERLAPPING)
"""All of them."""
