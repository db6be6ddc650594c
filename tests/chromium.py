"""Chromium without a window, spoken to through a pipe in its own protocol; nothing to install for it."""

from __future__ import annotations

import json
import os
import select
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome")
PATIENCE_S = 60


def find_chromium() -> str | None:
    """Return the browser, where there is one."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Browser:
    """One browser with one empty profile; `Tab`s are opened in it."""

    def __init__(self, program: str, profile: Path) -> None:
        to_it, self._out = os.pipe()
        self._in, from_it = os.pipe()
        words = [
            program, "--headless=new", "--remote-debugging-pipe", f"--user-data-dir={profile}", "--disable-gpu",
            "--no-sandbox", "--no-first-run", "--disable-dev-shm-usage", "--disable-background-networking",
            "--disable-component-update", "--hide-scrollbars", "about:blank",
        ]  # fmt: skip
        # The protocol wants its pipe at 3 and 4.
        shell = f'exec "$@" 3<&{to_it} 4>&{from_it}'
        self.process = subprocess.Popen(
            ["bash", "-c", shell, "bash", *words],
            pass_fds=(to_it, from_it),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_it)
        os.close(from_it)
        self._rest = b""
        self._number = 0
        self.events: list[dict[str, Any]] = []

    def ask(self, method: str, session: str | None = None, **params: Any) -> dict[str, Any]:
        """Send one command and return its result; what happens meanwhile is kept in `events`."""
        self._number += 1
        number = self._number
        told = {"id": number, "method": method, "params": params}
        if session is not None:
            told["sessionId"] = session
        os.write(self._out, json.dumps(told).encode() + b"\0")
        while (answer := self._read()).get("id") != number:
            self.events.append(answer)
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']}")
        result: dict[str, Any] = answer["result"]
        return result

    def await_event(self, is_it: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Return the first event of a kind, come or to come."""
        for event in self.events:
            if is_it(event):
                return event
        while not is_it(event := self._read()):
            self.events.append(event)
        self.events.append(event)
        return event

    def close(self) -> None:
        """End the browser."""
        try:
            self.ask("Browser.close")
        except (OSError, EOFError, TimeoutError):
            self.process.kill()
        os.close(self._in)
        os.close(self._out)
        self.process.wait(PATIENCE_S)

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            if not select.select([self._in], [], [], PATIENCE_S)[0]:
                raise TimeoutError(f"the browser has said nothing for {PATIENCE_S} s")
            got = os.read(self._in, 1 << 20)
            if not got:
                raise EOFError("the browser has ended")
            self._rest += got
        line, _, self._rest = self._rest.partition(b"\0")
        answer: dict[str, Any] = json.loads(line)
        return answer


class Tab:
    """One page in a browser, with what it asked of the network and what it complained of."""

    def __init__(
        self, browser: Browser, *, width: int = 1200, height: int = 900, has_script: bool = True
    ) -> None:
        self._browser = browser
        target = browser.ask("Target.createTarget", url="about:blank")["targetId"]
        self._session = browser.ask("Target.attachToTarget", targetId=target, flatten=True)[
            "sessionId"
        ]
        for domain in ("Page", "Runtime", "Network", "Log", "DOM"):
            self.ask(f"{domain}.enable")
        self.ask(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1,
            mobile=False,
        )  # fmt: skip
        if not has_script:
            self.ask("Emulation.setScriptExecutionDisabled", value=True)

    def ask(self, method: str, **params: Any) -> dict[str, Any]:
        """Send one command to the page."""
        return self._browser.ask(method, self._session, **params)

    def open(self, page: Path) -> None:
        """Load a page and wait until it is there."""
        began = len(self._browser.events)
        self.ask("Page.navigate", url=page.absolute().as_uri())
        mine = self._session
        self._browser.await_event(
            lambda event: (
                event.get("method") == "Page.loadEventFired"
                and event.get("sessionId") == mine
                and event not in self._browser.events[:began]
            )
        )

    def run(self, script: str) -> Any:
        """Return the value of an expression in the page."""
        told = self.ask(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        if "exceptionDetails" in told:
            raise RuntimeError(f"{script}: {told['exceptionDetails']}")
        return told["result"].get("value")

    def mouse(self, kind: str, x: float, y: float, **more: Any) -> None:
        """Move, press, release or turn the wheel at a place."""
        self.ask("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)

    def key(self, key: str, *, shift: bool = False) -> None:
        """Press and release a key."""
        text = {"text": key} if len(key) == 1 else {}
        for kind in ("keyDown", "keyUp"):
            more = text if kind == "keyDown" else {}
            self.ask("Input.dispatchKeyEvent", type=kind, key=key, modifiers=8 * shift, **more)

    def told(self, *methods: str) -> list[dict[str, Any]]:
        """Return the events of some kinds that this page has caused."""
        return [
            event["params"]
            for event in self._browser.events
            if event.get("sessionId") == self._session and event.get("method") in methods
        ]
