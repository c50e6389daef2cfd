"""The Torch device conforms: every op that it claims, and the contract."""

from __future__ import annotations

import pytest

from ggplug.backend import Device
from ggplug.testing import BackendSuite


@pytest.fixture(scope="module")
def torch_device() -> Device:
    pytest.importorskip("torch", reason="PyTorch is not installed; `nox -s torch` installs it")
    from ggplug_torch.device import TorchDevice

    return TorchDevice()


class TestTorch(BackendSuite):
    @pytest.fixture
    def device(self, torch_device: Device) -> Device:
        return torch_device
