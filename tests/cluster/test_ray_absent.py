"""Without a cluster, or without Ray, nothing is imported and the reason is one line."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import pytest

pytest.importorskip("ggplug_ray")


def run(code: str, **environment: str) -> str:
    variables = {name: value for name, value in os.environ.items() if name != "GGPLUG_RAY"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=variables | environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_ray_is_not_imported_until_a_cluster_is_named() -> None:
    code = "import sys, ggplug, ggplug_ray; ggplug.devices(); print('ray' in sys.modules)"
    assert run(code) == "False"


def test_without_the_variable_a_device_of_a_node_is_not_found_and_the_message_says_why() -> None:
    code = """
import ggplug
try:
    ggplug.device("Ray/a/CPU")
except ggplug.GGPlugError as error:
    print(error)
"""
    assert "set GGPLUG_RAY=auto" in run(code)


def test_without_ray_the_remedy_is_what_to_install() -> None:
    code = """
import sys
import threading
sys.modules["ray"] = None
import ggplug, ggplug_ray
try:
    ggplug_ray.connect()
except ggplug.GGPlugError as error:
    print(type(error).__name__, error)
"""
    assert run(code) == 'DeviceNotFoundError Ray is not installed (pip install "ggplug-core[ray]")'


def test_an_address_of_ray_client_is_refused() -> None:
    pytest.importorskip("ray")
    from ggplug.errors import DeviceNotFoundError
    from ggplug_ray import connect

    with pytest.raises(DeviceNotFoundError, match=r"ray://127\.0\.0\.1:1 is an address of Ray Client"):
        connect("ray://127.0.0.1:1")


def test_a_cluster_is_started_from_a_thread_that_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """As plugins are loaded in threads that end, with which Linux would end Ray's processes."""
    pytest.importorskip("ray")
    from ggplug_ray import cluster

    started: list[threading.Thread] = []

    def init(*address: str, **how: object) -> None:
        if address:
            raise ConnectionError("no cluster")
        started.append(threading.current_thread())

    monkeypatch.setattr(cluster.ray, "init", init)
    loading = threading.Thread(target=cluster._join, args=("auto",))
    loading.start()
    loading.join()
    assert [thread.is_alive() and thread.daemon for thread in started] == [True]
