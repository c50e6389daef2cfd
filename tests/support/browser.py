"""A headless Chromium, by the WebDriver protocol of its chromedriver."""

from __future__ import annotations

import base64
import http.client
import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from held import PATIENCE, Doing

ELEMENT = "element-6066-11e4-a52e-4f735466cecf"
"""The key that the protocol (W3C WebDriver, 12.1) gives elements."""

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-sync",
    "--disable-background-networking",
    "--disable-component-update",
    "--hide-scrollbars",
)


def programs() -> tuple[str, str] | None:
    """Chromium and its driver, where both are installed."""
    browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    driver = shutil.which("chromedriver")
    return (browser, driver) if browser and driver else None


class Browser:
    """A window."""

    def __init__(self, port: int, session: str) -> None:
        self._port = port
        self._session = session

    def __call__(self, method: str, path: str, **data: Any) -> Any:
        return call(self._port, method, f"/session/{self._session}{path}", data)

    def open(self, url: str) -> None:
        self("POST", "/url", url=url)

    def script(self, code: str, *arguments: Any) -> Any:
        """What a function with this body returns."""
        return self("POST", "/execute/sync", script=code, args=list(arguments))

    def find(self, selector: str) -> str:
        return str(self("POST", "/element", using="css selector", value=selector)[ELEMENT])

    def type(self, selector: str, text: str) -> None:
        self("POST", f"/element/{self.find(selector)}/value", text=text)

    def click(self, selector: str) -> None:
        self("POST", f"/element/{self.find(selector)}/click")

    def text(self, selector: str) -> str:
        return str(self("GET", f"/element/{self.find(selector)}/text"))

    def count(self, selector: str) -> int:
        return len(self("POST", "/elements", using="css selector", value=selector))

    def resize(self, width: int, height: int) -> None:
        """Shows the page as a screen of this size would, such as a phone's."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self("POST", "/goog/cdp/execute", cmd="Emulation.setDeviceMetricsOverride", params=metrics)

    def screenshot(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self("GET", "/screenshot")))


def call(port: int, method: str, path: str, data: Any = None) -> Any:
    """A command of the protocol.  Raises AssertionError with what the driver says."""
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)) as connection:
        body = json.dumps(data or {}) if method == "POST" else None
        connection.request(method, path, body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        found = json.load(response)
    assert response.status == 200, found["value"]
    return found["value"]


@contextmanager
def browser(folder: Path, *flags: str) -> Iterator[Browser]:
    """A window whose profile is in ``folder``; ``flags``: further ones of Chromium."""
    found = programs()
    assert found is not None
    process = subprocess.Popen([found[1], "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        port = Doing(lambda: _port(process)).result()
        arguments = [*FLAGS, f"--user-data-dir={folder}", *flags]
        options = {"binary": found[0], "args": arguments}
        made = call(port, "POST", "/session", {"capabilities": {"alwaysMatch": {"goog:chromeOptions": options}}})
        try:
            yield Browser(port, made["sessionId"])
        finally:
            call(port, "DELETE", f"/session/{made['sessionId']}")
    finally:
        process.kill()
        process.communicate()


def _port(process: subprocess.Popen[str]) -> int:
    assert process.stdout is not None
    for line in process.stdout:
        if match := re.search(r"started successfully on port (\d+)", line):
            return int(match[1])
    raise AssertionError("chromedriver ended")
