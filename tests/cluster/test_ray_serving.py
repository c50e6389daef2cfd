"""Faults while a server computes on two nodes: each request is answered rightly or with a typed error."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("ray")
pytestmark = pytest.mark.long


def test_no_request_hangs_or_is_answered_wrongly_while_devices_are_lost(cluster: Any) -> None:
    from tests.support.nodes.lost_devices import run

    assert run(cluster, 5) == []
