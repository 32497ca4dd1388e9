"""Drives a headless Chromium by its own DevTools protocol: enough of it for a test of a page.

Everything is looked for until it is there, for a page of today is drawn bit by bit.
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
"""Nothing moves but what turns for ever, as what shows that something is loaded does."""
_OPTIONS = (
    "--headless",
    # It runs as whoever runs the tests, who may be root, and shows nothing but our own pages.
    "--no-sandbox",
    "--no-zygote",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--remote-debugging-port=0",
    "--window-size=1400,1800",
)

CTRL, SHIFT = 2, 8
"""Modifiers of keys, as the DevTools protocol counts them."""


class Browser:
    """One tab. `open_browser` makes one.

    :param screenshots: the folder that `shot` writes to.
    """

    def __init__(self, socket: ClientConnection, screenshots: Path) -> None:
        self._socket = socket
        self._numbers = itertools.count(1)
        self._shots = itertools.count(1)
        self._screenshots = screenshots

    def command(self, method: str, **parameters: Any) -> Any:
        """Send one command, and return its result.

        :raises HarnessError: the browser refuses it.
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
        """The value of a JavaScript expression, which may be a promise."""
        result = self.command("Runtime.evaluate", expression=code, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in result:
            raise HarnessError(f"{code[:200]}: {result['exceptionDetails']}")
        return result["result"].get("value")

    def open(self, url: str) -> None:
        """Go to a page."""
        self.command("Page.navigate", url=url)

    def wait(self, condition: str, seconds: float = WAIT_SECONDS, *, what: str = "") -> Any:
        """Wait until a JavaScript expression has a value that is true, and return it.

        :raises HarnessError: it does not; with a picture of what is there instead.
        """
        try:
            return self._wait(condition, seconds)
        except HarnessError as error:
            shown = self.script("document.body.innerText.slice(0, 3000)")
            raise HarnessError(f"{what or condition}: {error}; see {self.shot('failed')}\n{shown}") from None

    def _wait(self, condition: str, seconds: float) -> Any:
        deadline = time.monotonic() + seconds
        while True:
            # While a page changes there may be nothing to ask.
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
        # What slides in is hit where it comes to rest.
        while place != before:
            self.wait(_AT_REST, seconds, what="the end of what moves")
            before, place = place, self.wait(where, seconds, what=f"{selector} {text}")
        for kind in ("mousePressed", "mouseReleased"):
            self.command("Input.dispatchMouseEvent", type=kind, x=place[0], y=place[1], button="left", clickCount=1)

    def type(self, selector: str, text: str) -> None:
        """Put a text into a field in place of what is there."""
        self.wait(f"!!document.querySelector({json.dumps(selector)})", what=selector)
        self.script(
            f"(() => {{ const one = document.querySelector({json.dumps(selector)}); one.focus(); one.select(); }})()"
        )
        self.command("Input.insertText", text=text)

    def edit(self, selector: str, text: str) -> None:
        """Put a text into an editor of code in place of what is there."""
        self.click(selector)
        self.press("a", "KeyA", 65, CTRL)
        self.command("Input.insertText", text=text)
        # The editor closes quotes and brackets by itself, behind what is typed.
        self.press("End", "End", 35, CTRL | SHIFT)
        self.press("Delete", "Delete", 46)

    def press(self, key: str, code: str, number: int, modifiers: int = 0) -> None:
        """Press a key, by its name, its place on the keyboard and its Windows number."""
        told = {"key": key, "code": code, "windowsVirtualKeyCode": number, "modifiers": modifiers}
        for kind in ("keyDown", "keyUp"):
            self.command("Input.dispatchKeyEvent", type=kind, **told)

    def shot(self, name: str) -> Path:
        """Take a picture of the page, once what unfolds or slides in has done so."""
        with contextlib.suppress(HarnessError):
            self._wait(_AT_REST, _REST_SECONDS)
        file = self._screenshots / f"{next(self._shots):02}-{name}.png"
        file.write_bytes(base64.b64decode(self.command("Page.captureScreenshot", format="png")["data"]))
        return file


@contextlib.contextmanager
def open_browser(screenshots: Path) -> Iterator[Browser]:
    """A browser of its own, which ends with the block.

    :raises HarnessError: there is no Chromium here, and none can be fetched; or it does not start.
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
    """The address of the one tab."""
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
