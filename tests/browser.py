"""A real browser for tests: headless Chromium, driven through two pipes.

Chromium's DevTools protocol over ``--remote-debugging-pipe`` is JSON with a zero byte
at the end of each message, on file descriptors 3 and 4: no driver, no port, no library.
"""

import contextlib
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from importlib import util
from pathlib import Path
from typing import Any

FLAGS = [
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
]
# Keys with a name: their number, and what they write.
KEYS = {"Tab": (9, ""), "Enter": (13, "\r"), "Escape": (27, ""), "ArrowRight": (39, "")}
# Moves the two given descriptors to 3 and 4, where Chromium expects them.
LAUNCH = """
import fcntl, os, sys
read, write = (fcntl.fcntl(int(fd), fcntl.F_DUPFD, 10) for fd in sys.argv[1:3])
os.dup2(read, 3)
os.dup2(write, 4)
os.execv(sys.argv[3], sys.argv[3:])
"""


class Browser:
    """One tab of a headless Chromium."""

    def __init__(self, folder: Path) -> None:
        path = shutil.which("chromium") or shutil.which("chromium-browser")
        assert path, "Chromium is not installed. Run `apt-get install chromium`."
        to_read, self._out = os.pipe()
        self._in, to_write = os.pipe()
        launch = [sys.executable, "-SEc", LAUNCH, str(to_read), str(to_write), path]
        self._process = subprocess.Popen(
            [*launch, *FLAGS, f"--user-data-dir={folder}", "about:blank"],
            pass_fds=(to_read, to_write),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_read)
        os.close(to_write)
        self._buffer = b""
        self._number = 0
        self._session = ""
        #: Errors and warnings of the console, exceptions, and requests that left.
        self.complaints: list[str] = []
        self.requests: list[str] = []
        targets = self.send("Target.getTargets")["targetInfos"]
        tab = next(one["targetId"] for one in targets if one["type"] == "page")
        attached = self.send("Target.attachToTarget", targetId=tab, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")

    def send(self, method: str, **params: Any) -> Any:
        """Send one command and return its result."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self._number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return answer["result"]

    def _receive(self, seconds: float = 60.0) -> dict[str, Any]:
        deadline = time.monotonic() + seconds
        while b"\0" not in self._buffer:
            left = max(0.0, deadline - time.monotonic())
            ready, _, _ = select.select([self._in], [], [], left)
            assert ready, f"Chromium did not answer within {seconds:g} s."
            part = os.read(self._in, 1 << 20)
            assert part, "Chromium ended."
            self._buffer += part
        first, self._buffer = self._buffer.split(b"\0", 1)
        message: dict[str, Any] = json.loads(first)
        self._note(message.get("method", ""), message.get("params", {}))
        return message

    def _note(self, method: str, params: dict[str, Any]) -> None:
        if method == "Runtime.exceptionThrown":
            details = params["exceptionDetails"]
            self.complaints.append(str(details.get("exception", details)))
        elif method == "Runtime.consoleAPICalled":
            if params["type"] in {"error", "warning", "assert"}:
                self.complaints.append(str(params["args"]))
        elif method == "Log.entryAdded":
            if params["entry"]["level"] in {"error", "warning"}:
                self.complaints.append(str(params["entry"]["text"]))
        elif method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])

    def look(self, *, width: int, height: int, dark: bool = False) -> None:
        """Set the size of the screen and the colour scheme."""
        self.send(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        scheme = {
            "name": "prefers-color-scheme",
            "value": "dark" if dark else "light",
        }
        self.send("Emulation.setEmulatedMedia", features=[scheme])

    def prefer_less_motion(self) -> None:
        """Ask pages for less motion, as a user of assistive technology may."""
        calm = {"name": "prefers-reduced-motion", "value": "reduce"}
        self.send("Emulation.setEmulatedMedia", features=[calm])

    def open(self, url: str) -> None:
        """Load a page from scratch, with nothing noted yet."""
        self.send("Page.navigate", url="about:blank")
        self._until("document.location.href === 'about:blank'")
        self.complaints.clear()
        self.requests.clear()
        self.send("Page.navigate", url=url)
        self._until("document.readyState === 'complete'")

    def _until(self, condition: str, seconds: float = 30.0) -> None:
        deadline = time.monotonic() + seconds
        while not self.run(condition):
            assert time.monotonic() < deadline, f"Never came true: {condition}"
            time.sleep(0.02)

    def run(self, expression: str) -> Any:
        """Evaluate JavaScript in the page; promises are awaited."""
        answer = self.send(
            "Runtime.evaluate",
            expression=expression,
            returnByValue=True,
            awaitPromise=True,
        )
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def follow(self, link: str, arrived: str) -> None:
        """Click the link of a selector and wait until a selector of its target exists.

        The click runs after the evaluation has been answered: an evaluation during
        which the page is left fails with "Inspected target navigated or closed". For
        the same reason a failed question is repeated until the target is loaded.
        """
        self.run(f"setTimeout(() => document.querySelector({link!r}).click()), 0")
        deadline = time.monotonic() + 30.0
        while True:
            with contextlib.suppress(AssertionError):
                if self.run(f"!!document.querySelector({arrived!r})"):
                    break
            assert time.monotonic() < deadline, f"{link} did not lead to {arrived}."
            time.sleep(0.02)
        self.wait("document.readyState === 'complete'")

    def wait(self, condition: str, seconds: float = 30.0) -> None:
        """Wait until an expression is true."""
        self._until(f"!!({condition})", seconds)

    def press(self, key: str) -> None:
        """Press and release one key."""
        code, text = KEYS.get(key, (ord(key.upper()[0]), key))
        for kind in ("keyDown", "keyUp"):
            self.send(
                "Input.dispatchKeyEvent",
                type=kind,
                key=key,
                code="Space" if key == " " else key,
                windowsVirtualKeyCode=code,
                **({"text": text} if text and kind == "keyDown" else {}),
            )

    def click(self, x: float, y: float) -> None:
        """Click at a place of the window."""
        for kind in ("mousePressed", "mouseReleased"):
            self.send(
                "Input.dispatchMouseEvent",
                type=kind,
                x=x,
                y=y,
                button="left",
                clickCount=1,
            )

    def screenshot(self, path: Path, *, whole: bool = False) -> None:
        """Write what is seen, or the whole page, as a PNG."""
        import base64

        shot = self.send("Page.captureScreenshot", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(shot["data"]))

    def axe(self) -> list[str]:
        """Return what axe-core calls serious or critical on the open page."""
        self.run(axe_source())
        found = self.run("axe.run(document, {resultTypes: ['violations']})")
        return [
            f"{one['id']} ({one['impact']}): "
            + "; ".join(str(node["target"]) for node in one["nodes"])
            for one in found["violations"]
            if one["impact"] in {"serious", "critical"}
        ]

    def close(self) -> None:
        """End this Chromium, and no other."""
        with contextlib.suppress(OSError, AssertionError):
            self._session = ""
            self.send("Browser.close")
        os.close(self._out)
        os.close(self._in)
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def axe_source() -> str:
    """Return axe-core, as the package axe-core-python carries it."""
    spec = util.find_spec("axe_core_python")
    assert spec, "Install the development extra: axe-core-python is missing."
    assert spec.submodule_search_locations
    folder = Path(spec.submodule_search_locations[0])
    return (folder / "axe.min.js").read_text(encoding="utf-8")


@contextlib.contextmanager
def opened() -> Iterator[Browser]:
    """Give a browser and close it in the end."""
    # Chromium may still write into its profile while it ends.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        browser = Browser(Path(folder))
        try:
            yield browser
        finally:
            browser.close()
