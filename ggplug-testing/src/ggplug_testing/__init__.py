"""The conformance suite, with everything that it takes: an oracle, generated cases, and devices to test testers with.

====================  ==========================================================================================
:mod:`.suite`         :class:`BackendSuite`, which any backend's tests subclass
:mod:`.conformance`   the same as one call: ``check(device)``, and as a command
:mod:`.ops`           what testers know of each op of core: what is tried, what is drawn, how precise it has to be
:mod:`.description`   the record of it, and how an op of another package is described
:mod:`.cases`         cases made of descriptions, and alike for all ops: types, shapes, strides, broadcasts, views
:mod:`.drawing`       sources and parameters drawn at random, for the fuzzer
:mod:`.contracts`     the contract of ``ggplug.backend``, clause by clause
:mod:`.precision`     how precise a result has to be: the table of rules
:mod:`.judging`       what a graph computes, in float64, by the ops' own references, and when two results count as equal
:mod:`.running`       computes cases between guard bytes, chains in groups, and all of them in a worker process
:mod:`.reporting`     verdicts, and which of them have one cause; the report as text and as a page
:mod:`.overrides`     from a broken clause of the contract to the author's methods that it exercises
:mod:`.devices`       the references as a device, as one that forms groups, and as one with a layout of its own
:mod:`.fake`          a discrete device with memory of its own that delays, reorders, fails and counts
:mod:`.vectors`       replays recorded cases of ggml: ``python -m ggplug_testing.vectors FILE.npz --device NAME``
:mod:`.plugin`        the pytest plugin
:mod:`.command`       the command ``ggplug conformance``
:mod:`.gpu_report`    what a GPU is proven to do, and how fast it is, in one file
====================  ==========================================================================================

Importing this package imports nothing: pytest does so at every start.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ggplug.system.lazy import whole

if TYPE_CHECKING:
    from ggplug_testing.cases import Case as Case
    from ggplug_testing.cases import Leafs as Leafs
    from ggplug_testing.cases import cases_of as cases_of
    from ggplug_testing.cases import generates as generates
    from ggplug_testing.conformance import check as check
    from ggplug_testing.devices.reference import ReferenceDevice as ReferenceDevice
    from ggplug_testing.fake import FakeDevice as FakeDevice
    from ggplug_testing.fake import FakeRegistration as FakeRegistration
    from ggplug_testing.judging.comparison import Comparison as Comparison
    from ggplug_testing.judging.comparison import nmse as nmse
    from ggplug_testing.judging.derivatives import Slope as Slope
    from ggplug_testing.judging.derivatives import wrong_slopes as wrong_slopes
    from ggplug_testing.judging.differences import Differences as Differences
    from ggplug_testing.judging.differences import WrongNode as WrongNode
    from ggplug_testing.judging.nodewise import compare as compare
    from ggplug_testing.judging.oracle import Evaluation as Evaluation
    from ggplug_testing.judging.oracle import evaluate as evaluate
    from ggplug_testing.reporting.report import Finding as Finding
    from ggplug_testing.reporting.report import Report as Report
    from ggplug_testing.suite import BackendSuite as BackendSuite

_NAMES = {
    "cases": "Case Leafs cases_of generates",
    "conformance": "check",
    "devices.reference": "ReferenceDevice",
    "fake": "FakeDevice FakeRegistration",
    "judging.comparison": "Comparison nmse",
    "judging.derivatives": "Slope wrong_slopes",
    "judging.differences": "Differences WrongNode",
    "judging.nodewise": "compare",
    "judging.oracle": "Evaluation evaluate",
    "reporting.report": "Finding Report",
    "suite": "BackendSuite",
}
"""The public names, by the modules that have them."""

_HOMES = {name: home for home, names in _NAMES.items() for name in names.split()}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(whole(f"{__name__}.{home}"), name)
