"""Devices and libraries that tests take where they are."""

from __future__ import annotations

import importlib.util

import pytest

import ggplug as gg

SERVE = pytest.param(
    "serve", marks=pytest.mark.skipif(importlib.util.find_spec("fastapi") is None, reason="fastapi is not installed")
)
"""The command ``serve``, which needs further libraries."""


def device_or_skip(name: str) -> gg.Device:
    """The device of that name; where there is none, the test is skipped.  CPU is everywhere."""
    try:
        return gg.device(name)
    except gg.DeviceNotFoundError as error:
        if name == "CPU":
            raise
        pytest.skip(str(error))
