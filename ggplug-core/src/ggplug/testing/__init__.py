"""The conformance suite, with everything that it takes: an oracle, generated cases, and devices to test testers with.

======================  ========================================================================================
:mod:`.oracle`          what a graph computes, in float64, by the ops' own references
:mod:`.compare`         when two results count as equal
:mod:`.cases`           cases derived from the ops' declarations: types, shapes, strides, broadcasts, views
:mod:`.suite`           :class:`BackendSuite`, which any backend's tests subclass
:mod:`.vectors`         replays recorded cases of ggml: ``python -m ggplug.testing.vectors FILE.npz --device NAME``
:mod:`.reference`       the references as a device
:mod:`.fake`            a discrete device with memory of its own that delays, reorders, fails and counts
:mod:`.faulty`          devices with one fault each, which the suite has to find
:mod:`.plugin`          the pytest plugin
======================  ========================================================================================

Importing this package imports nothing: pytest does so at every start.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ggplug.testing.compare import Comparison, compare, compare_selected, nmse
    from ggplug.testing.fake import FakeDevice, FakeRegistration
    from ggplug.testing.oracle import Evaluation, evaluate
    from ggplug.testing.reference import ReferenceDevice

_HOMES = {
    "Comparison": "compare",
    "compare": "compare",
    "compare_selected": "compare",
    "nmse": "compare",
    "FakeDevice": "fake",
    "FakeRegistration": "fake",
    "Evaluation": "oracle",
    "evaluate": "oracle",
    "ReferenceDevice": "reference",
}

__all__ = [
    "Comparison",
    "Evaluation",
    "FakeDevice",
    "FakeRegistration",
    "ReferenceDevice",
    "compare",
    "compare_selected",
    "evaluate",
    "nmse",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{home}"), name)
