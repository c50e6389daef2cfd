"""The conformance suite, with everything that it takes: an oracle, generated cases, and devices to test testers with.

====================  ==========================================================================================
:mod:`.suite`         :class:`BackendSuite`, which any backend's tests subclass
:mod:`.conformance`   the same as one call: ``check(device)``, and as a command
:mod:`.oracle`        what a graph computes, in float64, by the ops' own references
:mod:`.precision`     how precise a result has to be: the table of rules; :mod:`.expected` has it for whole graphs
:mod:`.comparison`    when two results count as equal
:mod:`.nodewise`      two devices compared node by node: which number is the first wrong one
:mod:`.ops`           what testers know of each op of core: what is tried, what is drawn, how precise it has to be
:mod:`.description`   the record of it, and how an op from elsewhere is described
:mod:`.cases`         cases made of descriptions, and alike for all ops: types, shapes, strides, broadcasts, views
:mod:`.drawing`       sources and parameters drawn at random, for the fuzzer
:mod:`.contracts`     the contract of ``ggplug.backend``, clause by clause
:mod:`.runner`        computes cases between guard bytes, and judges
:mod:`.groups`        chains of ops in the groups that a device forms, poisoned, and node by node
:mod:`.report`        verdicts, and which of them have one cause
:mod:`.causes`        from an exception to the line of the backend's author
:mod:`.overrides`     from a broken clause of the contract to the author's methods that it exercises
:mod:`.traits`        what can be said of a case by its node, for hints at what failing cases have in common
:mod:`.rendering`     the report as text and as a page
:mod:`.watching`      chooses cases, and follows them while they run
:mod:`.stopping`      runs that are stopped by a signal; :mod:`.progress` shows how far one is
:mod:`.isolation`     cases in a worker process; :mod:`.isolated_tests` has pytest do so
:mod:`.vectors`       replays recorded cases of ggml: ``python -m ggplug_testing.vectors FILE.npz --device NAME``
:mod:`.reference`     the references as a device
:mod:`.fusing`        the references as a device that forms groups
:mod:`.fake`          a discrete device with memory of its own that delays, reorders, fails and counts
:mod:`.plugin`        the pytest plugin; :mod:`.verdicts` has what it shows
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
    from ggplug_testing.comparison import Comparison as Comparison
    from ggplug_testing.comparison import nmse as nmse
    from ggplug_testing.conformance import check as check
    from ggplug_testing.fake import FakeDevice as FakeDevice
    from ggplug_testing.fake import FakeRegistration as FakeRegistration
    from ggplug_testing.nodewise import Differences as Differences
    from ggplug_testing.nodewise import WrongNode as WrongNode
    from ggplug_testing.nodewise import compare as compare
    from ggplug_testing.oracle import Evaluation as Evaluation
    from ggplug_testing.oracle import evaluate as evaluate
    from ggplug_testing.reference import ReferenceDevice as ReferenceDevice
    from ggplug_testing.report import Finding as Finding
    from ggplug_testing.report import Report as Report
    from ggplug_testing.suite import BackendSuite as BackendSuite

_HOMES = {
    "BackendSuite": "suite",
    "Case": "cases",
    "Comparison": "comparison",
    "Differences": "nodewise",
    "Evaluation": "oracle",
    "FakeDevice": "fake",
    "FakeRegistration": "fake",
    "Finding": "report",
    "Leafs": "cases",
    "ReferenceDevice": "reference",
    "Report": "report",
    "WrongNode": "nodewise",
    "cases_of": "cases",
    "check": "conformance",
    "compare": "nodewise",
    "evaluate": "oracle",
    "generates": "cases",
    "nmse": "comparison",
}

__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(whole(f"{__name__}.{home}"), name)
