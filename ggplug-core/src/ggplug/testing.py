"""The public names of the conformance suite, which is in the distribution ``ggplug-testing``.

    pip install "ggplug-core[test]"

Importing this module imports nothing else.  Without that distribution, accessing a name raises PluginError.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ggplug.errors import PluginError
from ggplug.system.lazy import whole

if TYPE_CHECKING:
    from ggplug_testing import (
        BackendSuite,
        Case,
        Comparison,
        Differences,
        Evaluation,
        FakeDevice,
        FakeRegistration,
        Finding,
        Leafs,
        ReferenceDevice,
        Report,
        Slope,
        WrongNode,
        cases_of,
        check,
        compare,
        evaluate,
        generates,
        nmse,
        wrong_slopes,
    )

__all__ = [
    "BackendSuite",
    "Case",
    "Comparison",
    "Differences",
    "Evaluation",
    "FakeDevice",
    "FakeRegistration",
    "Finding",
    "Leafs",
    "ReferenceDevice",
    "Report",
    "Slope",
    "WrongNode",
    "cases_of",
    "check",
    "compare",
    "evaluate",
    "generates",
    "nmse",
    "wrong_slopes",
]

_SUITE = "ggplug_testing"


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        suite = whole(_SUITE)
    except ModuleNotFoundError as error:
        if error.name != _SUITE:
            raise
        raise PluginError(
            f"{__name__}.{name} is in the conformance suite, which is not installed",
            entry_point=name,
            distribution="ggplug-testing",
            version=None,
            stage="installed",
            remedy='pip install "ggplug-core[test]"',
        ) from error
    return getattr(suite, name)
