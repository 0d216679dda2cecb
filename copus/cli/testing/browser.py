"""A headless Chromium that tests drive, through pipes and without other packages (the Chrome DevTools Protocol).

    with Browser() as browser:
        page = browser.open(path)
        page.evaluate("document.title")

Console warnings and errors of a page and its exceptions are in page.complaints, its network requests in page.requests.
"""

import base64
import json
import os
import pathlib
import select
import shutil
import subprocess
import tempfile

DEADLINE = 120  # seconds for one answer, far more than needed
PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def find_browser() -> str | None:
    return next((path for path in map(shutil.which, PROGRAMS) if path), None)


class Page:
    def __init__(self, browser: "Browser", session: str):
        self.browser = browser
        self.session = session
        self.complaints: list[str] = []
        self.requests: list[str] = []

    def command(self, method: str, **parameters) -> dict:
        return self.browser.command(method, parameters, self.session)

    def evaluate(self, expression: str):
        """The value of a JavaScript expression; promises are awaited."""
        answer = self.command("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise AssertionError(f"{expression}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def settle(self) -> None:
        """Waits until all requested changes are drawn."""
        self.evaluate("new Promise((done) => requestAnimationFrame(() => setTimeout(done, 50)))")

    def resize(self, width: int, height: int, phone: bool = False) -> None:
        self.command("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1,
                     mobile=phone)
        self.settle()

    def set_dark(self, dark: bool) -> None:
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.command("Emulation.setEmulatedMedia", features=[scheme])
        self.settle()

    def drag(self, start: tuple[float, float], end: tuple[float, float]) -> None:
        for kind, (x, y), button in (("mouseMoved", start, "none"), ("mousePressed", start, "left"),
                                     ("mouseMoved", end, "left"), ("mouseReleased", end, "left")):
            self.command("Input.dispatchMouseEvent", type=kind, x=x, y=y, button=button, clickCount=1)
        self.settle()

    def screenshot(self, path: pathlib.Path) -> None:
        """Saves the whole page, from top to bottom."""
        image = self.command("Page.captureScreenshot", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(image["data"]))

    def note(self, method: str, event: dict) -> None:
        if method == "Runtime.exceptionThrown":
            self.complaints.append(str(event["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled" and event["type"] in ("error", "warning", "assert"):
            self.complaints.append(str(event["args"]))
        elif method == "Log.entryAdded" and event["entry"]["level"] in ("error", "warning"):
            self.complaints.append(event["entry"]["text"])
        elif method == "Network.requestWillBeSent":
            self.requests.append(event["request"]["url"])


class Browser:
    def __enter__(self) -> "Browser":
        self._profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        their_input, our_output = os.pipe()
        our_input, their_output = os.pipe()

        def take_pipes():  # the browser reads commands from descriptor 3 and answers on 4
            first, second = os.dup(their_input), os.dup(their_output)
            os.dup2(first, 3)
            os.dup2(second, 4)

        self._process = subprocess.Popen(
            [find_browser(), "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
             "--hide-scrollbars", "--disable-background-networking", f"--user-data-dir={self._profile.name}",
             "--remote-debugging-pipe"],
            preexec_fn=take_pipes, close_fds=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(their_input)
        os.close(their_output)
        self._output, self._input = os.fdopen(our_output, "wb", buffering=0), os.fdopen(our_input, "rb", buffering=0)
        self._buffer, self._last_id = b"", 0
        self._pages: dict[str, Page] = {}
        return self

    def __exit__(self, *_):
        self._output.close()
        try:
            self._process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._input.close()
        self._profile.cleanup()

    def _read(self) -> dict:
        while b"\0" not in self._buffer:
            if not select.select([self._input], [], [], DEADLINE)[0]:
                raise AssertionError(f"the browser has said nothing for {DEADLINE} s")
            more = self._input.read(1 << 16)
            if not more:
                raise AssertionError("the browser has ended")
            self._buffer += more
        message, self._buffer = self._buffer.split(b"\0", 1)
        return json.loads(message)

    def command(self, method: str, parameters: dict, session: str | None = None) -> dict:
        self._last_id += 1
        message = {"id": self._last_id, "method": method, "params": parameters}
        if session:
            message["sessionId"] = session
        self._output.write(json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == self._last_id:
                if "error" in answer:
                    raise AssertionError(f"{method}: {answer['error']}")
                return answer["result"]
            page = self._pages.get(answer.get("sessionId"))
            if page:
                page.note(answer["method"], answer["params"])

    def open(self, path: pathlib.Path, width: int = 1400, height: int = 900) -> Page:
        target = self.command("Target.createTarget", {"url": "about:blank"})["targetId"]
        session = self.command("Target.attachToTarget", {"targetId": target, "flatten": True})["sessionId"]
        page = self._pages[session] = Page(self, session)
        for domain in ("Page", "Runtime", "Log", "Network"):
            page.command(f"{domain}.enable")
        page.command("Page.navigate", url=path.absolute().as_uri())
        page.evaluate("new Promise((done) => {"
                      "  if (document.readyState === 'complete') done(); else addEventListener('load', done); })")
        page.resize(width, height)
        return page
