"""A real headless Chromium, driven over its DevTools protocol; no driver of somebody else's in between."""

import asyncio
import json
import os
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import aiohttp

_FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --disable-extensions --disable-dev-shm-usage --mute-audio "
    "--no-default-browser-check --disable-default-apps --hide-scrollbars --remote-debugging-port=0"
).split()
_READY_WITHIN_S = 40.0


@contextmanager
def running_chromium(command: str) -> Iterator[str]:
    """Yields the address of the browser's debugging socket."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory:
        arguments = [command, *_FLAGS, f"--user-data-dir={directory}", "about:blank"]
        # A session of its own, so that its children end with it.
        nowhere = subprocess.DEVNULL
        with subprocess.Popen(arguments, start_new_session=True, stdout=nowhere, stderr=nowhere) as process:
            try:
                yield _address(Path(directory) / "DevToolsActivePort", process)
            finally:
                os.killpg(process.pid, 15)
                try:
                    process.wait(10)
                except subprocess.TimeoutExpired:
                    os.killpg(process.pid, 9)


def _address(told: Path, process: subprocess.Popen[bytes]) -> str:
    deadline = time.monotonic() + _READY_WITHIN_S
    while time.monotonic() < deadline and process.poll() is None:
        if told.exists() and len(lines := told.read_text().splitlines()) == 2:
            return f"ws://127.0.0.1:{lines[0]}{lines[1]}"
        time.sleep(0.05)
    raise AssertionError(f"Chromium did not start (it ended with {process.poll()})")


class Page:
    """One tab, in a browser context of its own: nothing is stored from one to the next."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse, session: str) -> None:
        self._socket = socket
        self._session = session
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._number = 100
        self.requests: list[str] = []
        self.complaints: list[str] = []
        """Errors and warnings that it wrote to its console, exceptions, breaches of its content policy."""

    async def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        answer = self._answers[self._number] = asyncio.get_running_loop().create_future()
        await self._socket.send_json(
            {"id": self._number, "method": method, "params": parameters, "sessionId": self._session}
        )
        return await asyncio.wait_for(answer, 30)

    async def listen(self) -> None:
        async for message in self._socket:
            told = json.loads(message.data)
            if told.get("sessionId") != self._session:
                continue
            if "id" in told:
                answer = self._answers.pop(told["id"])
                if "error" in told:
                    answer.set_exception(AssertionError(told["error"]["message"]))
                else:
                    answer.set_result(told["result"])
            else:
                self._note(told["method"], told["params"])

    def _note(self, method: str, of: dict[str, Any]) -> None:
        if method == "Network.requestWillBeSent":
            self.requests.append(of["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            self.complaints.append(
                of["exceptionDetails"].get("exception", {}).get("description", "an exception")
            )
        elif method == "Runtime.consoleAPICalled" and of["type"] in ("error", "warning", "assert"):
            self.complaints.append(" ".join(str(each.get("value")) for each in of["args"]))
        elif method == "Log.entryAdded" and of["entry"]["source"] in ("security", "violation", "javascript"):
            self.complaints.append(of["entry"]["text"])

    async def run(self, script: str) -> Any:
        """The value of an expression, awaited if it is a promise."""
        answer = await self.send("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    async def until(
        self, script: str, *, within_s: float = 100.0, holds: Callable[[Any], bool] = bool
    ) -> Any:
        deadline = time.monotonic() + within_s
        while not holds(value := await self.run(script)):
            assert time.monotonic() < deadline, f"not within {within_s} s: {script} (it is {value!r})"
            await asyncio.sleep(0.05)
        return value

    async def open(self, url: str) -> None:
        await self.send("Page.navigate", url=url)
        await self.until("document.readyState === 'complete'")

    async def resize(self, width: int, height: int) -> None:
        await self.send(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )

    async def prefer(self, **features: str) -> None:
        """`color_scheme="dark"` and the like."""
        told = [
            {"name": f"prefers-{name.replace('_', '-')}", "value": value} for name, value in features.items()
        ]
        await self.send("Emulation.setEmulatedMedia", features=told)

    async def press(self, *keys: str) -> None:
        """Each a character or a key's name, as `KeyboardEvent.key` has it; `Shift+` may stand before it."""
        for each in keys:
            _, shift, key = each.rpartition("Shift+")
            text = {"Enter": "\r", "Space": " "}.get(key, key if len(key) == 1 else "")
            name = " " if key == "Space" else key
            told = {"key": name, "code": key if len(key) > 1 else "", "modifiers": 8 if shift else 0}
            told["windowsVirtualKeyCode"] = {"Enter": 13, "Tab": 9, "Escape": 27, "Space": 32}.get(key, 0)
            await self.send("Input.dispatchKeyEvent", type="keyDown", text=text, **told)
            await self.send("Input.dispatchKeyEvent", type="keyUp", **told)

    async def metrics(self) -> dict[str, float]:
        answer = await self.send("Performance.getMetrics")
        return {each["name"]: each["value"] for each in answer["metrics"]}


@asynccontextmanager
async def new_page(address: str) -> AsyncIterator[Page]:
    async with aiohttp.ClientSession() as client, client.ws_connect(address, max_msg_size=0) as socket:

        async def ask(number: int, method: str, **parameters: Any) -> dict[str, Any]:
            await socket.send_json({"id": number, "method": method, "params": parameters})
            while (told := await socket.receive_json()).get("id") != number:
                pass
            return told["result"]

        context = (await ask(1, "Target.createBrowserContext"))["browserContextId"]
        target = (await ask(2, "Target.createTarget", url="about:blank", browserContextId=context))[
            "targetId"
        ]
        session = (await ask(3, "Target.attachToTarget", targetId=target, flatten=True))["sessionId"]
        page = Page(socket, session)
        listening = asyncio.create_task(page.listen())
        try:
            for domain in ("Page", "Network", "Runtime", "Log"):
                await page.send(f"{domain}.enable")
            # Time of the processor: what else the machine does is not the page's.
            await page.send("Performance.enable", timeDomain="threadTicks")
            await page.resize(1280, 800)
            yield page
        finally:
            listening.cancel()
            over = {"method": "Target.disposeBrowserContext", "params": {"browserContextId": context}}
            await socket.send_json({"id": 9, **over})
