"""Drives a headless Chromium with the DevTools protocol, as far as tests of pages need it.

All methods wait for the elements that they use, because a page is rendered in steps.
"""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from websockets.sync.client import ClientConnection, connect

from harness.chromium import find_chromium
from harness.errors import HarnessError

WAIT_SECONDS = 60.0
_START_SECONDS = 60.0
_REST_SECONDS = 10.0
_AT_REST = (
    "document.getAnimations().every(one => one.playState != 'running'"
    " || one.effect.getComputedTiming().endTime == Infinity)"
)
"""True if no animation runs, except endless ones such as a loading indicator."""
_OPTIONS = (
    "--headless",
    # It runs as the user of the tests, who may be root, and shows only pages of this repository's servers.
    "--no-sandbox",
    "--no-zygote",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--remote-debugging-port=0",
    "--window-size=1400,1800",
)

CTRL, SHIFT = 2, 8
"""Modifiers of keys, with the numbers of the DevTools protocol."""


class Browser:
    """One tab. `open_browser` creates it.

    :param screenshots: the folder to which `shot` writes.
    """

    def __init__(self, socket: ClientConnection, screenshots: Path) -> None:
        self._socket = socket
        self._numbers = itertools.count(1)
        self._shots = itertools.count(1)
        self._screenshots = screenshots

    def command(self, method: str, **parameters: Any) -> Any:
        """Send one command, and return its result.

        :raises HarnessError: the browser rejects the command.
        """
        number = next(self._numbers)
        self._socket.send(json.dumps({"id": number, "method": method, "params": parameters}))
        deadline = time.monotonic() + WAIT_SECONDS
        while time.monotonic() < deadline:
            answer = json.loads(self._socket.recv(timeout=WAIT_SECONDS))
            if answer.get("id") == number:
                if "error" in answer:
                    raise HarnessError(f"{method}: {answer['error']}")
                return answer["result"]
        raise HarnessError(f"{method}: no answer")

    def script(self, code: str) -> Any:
        """Return the value of a JavaScript expression, which may be a promise."""
        result = self.command("Runtime.evaluate", expression=code, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in result:
            raise HarnessError(f"{code[:200]}: {result['exceptionDetails']}")
        return result["result"].get("value")

    def open(self, url: str) -> None:
        """Open a page."""
        self.command("Page.navigate", url=url)

    def wait(self, condition: str, seconds: float = WAIT_SECONDS, *, what: str = "") -> Any:
        """Wait until the value of a JavaScript expression is true, and return the value.

        :raises HarnessError: the value did not become true; the message names a screenshot of the page.
        """
        try:
            return self._wait(condition, seconds)
        except HarnessError as error:
            shown = self.script("document.body.innerText.slice(0, 3000)")
            raise HarnessError(f"{what or condition}: {error}; see {self.shot('failed')}\n{shown}") from None

    def _wait(self, condition: str, seconds: float) -> Any:
        deadline = time.monotonic() + seconds
        while True:
            # While a page loads, the expression may not be defined yet.
            with contextlib.suppress(HarnessError):
                if found := self.script(condition):
                    return found
            if time.monotonic() > deadline:
                raise HarnessError(f"not after {seconds:.0f} s")
            time.sleep(0.3)

    def wait_text(self, text: str, seconds: float = WAIT_SECONDS) -> None:
        """Wait until the page shows a text."""
        self.wait(f"document.body.innerText.includes({json.dumps(text)})", seconds, what=text)

    def click(self, selector: str, text: str = "", seconds: float = WAIT_SECONDS) -> None:
        """Click the first element that a CSS selector finds and whose text begins with ``text``."""
        found = (
            f"[...document.querySelectorAll({json.dumps(selector)})]"
            ".find(one => one.offsetParent !== null && !one.disabled"
            f" && one.innerText.trim().startsWith({json.dumps(text)}))"
        )
        where = (
            f"(() => {{ const one = {found}; one.scrollIntoView({{block: 'center'}}); "
            "const box = one.getBoundingClientRect(); "
            "const x = box.x + box.width / 2, y = box.y + box.height / 2; "
            "const top = document.elementFromPoint(x, y); "
            "return top && (one.contains(top) || top.contains(one)) ? [x, y] : null; })()"
        )
        before, place = None, self.wait(where, seconds, what=f"{selector} {text}")
        # Wait until moving elements have reached their final place.
        while place != before:
            self.wait(_AT_REST, seconds, what="the end of what moves")
            before, place = place, self.wait(where, seconds, what=f"{selector} {text}")
        for kind in ("mousePressed", "mouseReleased"):
            self.command("Input.dispatchMouseEvent", type=kind, x=place[0], y=place[1], button="left", clickCount=1)

    def type(self, selector: str, text: str) -> None:
        """Replace the text of a field."""
        self.wait(f"!!document.querySelector({json.dumps(selector)})", what=selector)
        self.script(
            f"(() => {{ const one = document.querySelector({json.dumps(selector)}); one.focus(); one.select(); }})()"
        )
        self.command("Input.insertText", text=text)

    def edit(self, selector: str, text: str) -> None:
        """Replace the text of a code editor."""
        self.click(selector)
        self.press("a", "KeyA", 65, CTRL)
        self.command("Input.insertText", text=text)
        # Delete the quotes and brackets that the editor adds after the typed text.
        self.press("End", "End", 35, CTRL | SHIFT)
        self.press("Delete", "Delete", 46)

    def press(self, key: str, code: str, number: int, modifiers: int = 0) -> None:
        """Press a key, given by its name, its code (the place on the keyboard) and its Windows number."""
        told = {"key": key, "code": code, "windowsVirtualKeyCode": number, "modifiers": modifiers}
        for kind in ("keyDown", "keyUp"):
            self.command("Input.dispatchKeyEvent", type=kind, **told)

    def shot(self, name: str) -> Path:
        """Take a screenshot of the page after its animations have ended."""
        with contextlib.suppress(HarnessError):
            self._wait(_AT_REST, _REST_SECONDS)
        file = self._screenshots / f"{next(self._shots):02}-{name}.png"
        file.write_bytes(base64.b64decode(self.command("Page.captureScreenshot", format="png")["data"]))
        return file


@contextlib.contextmanager
def open_browser(screenshots: Path) -> Iterator[Browser]:
    """Start a private browser, which ends with the block.

    :raises HarnessError: Chromium is not installed and cannot be fetched, or does not start.
    """
    chromium = find_chromium()
    screenshots.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="cdc-browser-", ignore_cleanup_errors=True) as profile:
        log = Path(profile, "log")
        with log.open("wb") as said:
            process = subprocess.Popen(
                [chromium.binary, *_OPTIONS, f"--user-data-dir={profile}", "about:blank"],
                env={**os.environ, **chromium.environment},
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
            )
        try:
            with connect(_address(process, Path(profile), log), max_size=None) as socket:
                browser = Browser(socket, screenshots)
                browser.command("Page.enable")
                yield browser
        finally:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(10)
            process.kill()
            process.wait()


def _address(process: subprocess.Popen[bytes], profile: Path, log: Path) -> str:
    """Return the address of the tab."""
    import urllib.request

    deadline = time.monotonic() + _START_SECONDS
    port = profile / "DevToolsActivePort"
    while process.poll() is None and time.monotonic() < deadline:
        with contextlib.suppress(OSError, ValueError, StopIteration):
            url = f"http://127.0.0.1:{port.read_text().splitlines()[0]}/json"
            with urllib.request.urlopen(url, timeout=10) as answer:
                return str(next(one["webSocketDebuggerUrl"] for one in json.load(answer) if one["type"] == "page"))
        time.sleep(0.2)
    raise HarnessError(f"Chromium does not start:\n{log.read_text(errors='replace')[-2000:]}")
