"""Devices that tests take where they are."""

from __future__ import annotations

import pytest

import ggplug as gg


def device_or_skip(name: str) -> gg.Device:
    """The device of that name; where there is none, the test is skipped.  CPU is everywhere."""
    try:
        return gg.device(name)
    except gg.DeviceNotFoundError as error:
        if name == "CPU":
            raise
        pytest.skip(str(error))
