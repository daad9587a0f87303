"""A page in headless Chromium, driven over its DevTools pipe: no driver, no port, nothing but the browser."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

CONNECT = """
import os, sys
reading, writing = (os.dup(int(number)) for number in sys.argv[1:3])
for number, kept in ((3, os.dup2(reading, 30)), (4, os.dup2(writing, 31))):
    os.dup2(kept, number)
os.execv(sys.argv[3], sys.argv[3:])
"""
# Becomes Chromium, which reads commands on descriptor 3 and answers on 4.

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")


def find() -> str | None:
    """The browser of this machine."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Page:
    """One open page, and what its console said. Use as a context manager."""

    def __init__(self, browser: str, folder: Path) -> None:
        to_browser, from_us = os.pipe()
        from_browser, to_us = os.pipe()

        # As root, as in a container, there is no sandbox.
        options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"]
        command = [browser, *options, "--remote-debugging-pipe", f"--user-data-dir={folder}", "about:blank"]
        with open(folder / "log", "wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-c", CONNECT, str(to_browser), str(to_us), *command],
                stdout=log, stderr=log, pass_fds=(to_browser, to_us),
            )  # fmt: skip
        os.close(to_browser)
        os.close(to_us)
        self.commands, self.answers = os.fdopen(from_us, "wb"), os.fdopen(from_browser, "rb")
        self.number, self.buffer, self.session = 0, b"", None
        self.said: list[str] = []
        self.loaded = False
        targets = self.call("Target.getTargets")["targetInfos"]
        target = next(target["targetId"] for target in targets if target["type"] == "page")
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def __enter__(self) -> Page:
        return self

    def __exit__(self, *ignored: object) -> None:
        self.commands.close()
        self.process.kill()
        self.process.wait()
        self.answers.close()

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send a command and wait for its answer."""
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        self.commands.write(json.dumps(message).encode() + b"\0")
        self.commands.flush()
        while True:
            answer = self._next()
            if answer.get("id") == self.number:
                assert "error" not in answer, answer["error"]
                return answer["result"]

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self.buffer:
            read = os.read(self.answers.fileno(), 1 << 16)
            assert read, "the browser has gone"
            self.buffer += read
        line, _, self.buffer = self.buffer.partition(b"\0")
        message = json.loads(line)
        parameters = message.get("params", {})
        match message.get("method"):
            case "Log.entryAdded":
                self.said.append(parameters["entry"]["text"])
            case "Runtime.consoleAPICalled" | "Runtime.exceptionThrown":
                self.said.append(json.dumps(parameters))
            case "Page.loadEventFired":
                self.loaded = True
        return message

    def open(self, path: Path, width: int, height: int, *, dark: bool = False) -> None:
        """Load a file at this size of a screen."""
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 700
        )
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.call("Emulation.setEmulatedMedia", features=scheme)
        self.loaded = False
        self.call("Page.navigate", url=path.as_uri())
        while not self.loaded:
            self._next()

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression in the page."""
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    def screenshot(self, path: Path) -> None:
        """The whole page as PNG."""
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": min(size["height"], 8000), "scale": 1}
        picture = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip)
        path.write_bytes(base64.b64decode(picture["data"]))
