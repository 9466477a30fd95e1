"""Takes the pictures of the dashboard in docs/img anew: `python -m tools.screenshots [NAME ...]`.

A gateway, a history, the stub engine and the agents of `turnpike try`, each a process of its own, and a real
Chromium. What is on a picture happened. Look at each before you commit it.
"""

import asyncio
import base64
import json
import socket
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

from tests.dashboard.browser import Page, new_page, running_chromium
from tests.dashboard.probes import LIVE
from tests.prerequisites import require_command

TARGET: Final = Path(__file__).parent.parent / "docs" / "img"
NAMES: Final = ("start", "load", "session", "history", "down")
"""Without traffic, with a queue, one session, what is over, without a backend."""
_SIZES: Final = ((1280, 860), (390, 844))
_SETTINGS: Final = """
[server]
listen = "127.0.0.1:{listen}"
control = "127.0.0.1:{control}"
[[pools]]
replicas = [{{ url = "http://127.0.0.1:{engine}" }}]
[admission]
max_running_per_replica = 4
[history]
url = "http://127.0.0.1:{history}"
[[prices]]
model = "stub"
input = 1.0
cached_input = 0.1
output = 4.0
"""


def _free_ports(*names: str) -> dict[str, int]:
    taken = [socket.create_server(("127.0.0.1", 0)) for _ in names]
    ports = {name: each.getsockname()[1] for name, each in zip(names, taken, strict=True)}
    for each in taken:
        each.close()
    return ports


@contextmanager
def _running(*words: str) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-m", *words], stdin=subprocess.PIPE) as process:
        try:
            yield process
        finally:
            process.terminate()


def _ask(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=10) as answer:
        return json.load(answer)


async def _until(url: str, *, within_s: float = 60.0) -> None:
    for _ in range(int(within_s * 4)):
        try:
            return await asyncio.to_thread(_ask, url)
        except OSError:
            await asyncio.sleep(0.25)
    raise TimeoutError(url)


class _Camera:
    def __init__(self, chromium: str, page: str, names: list[str]) -> None:
        self._chromium = chromium
        self._page = page
        self._names = names

    async def take(self, name: str, hash_: str = "", *, is_there: str, rests_s: float = 4.0) -> None:
        for width, height in _SIZES if name in self._names else ():
            for theme in ("light", "dark"):
                async with new_page(self._chromium) as page:
                    await page.resize(width, height)
                    await page.prefer(color_scheme=theme)
                    await page.open(self._page + hash_)
                    await page.until(f"({LIVE}) && ({is_there})")
                    await asyncio.sleep(rests_s)  # figures that it asks for every few seconds
                    await self._save(page, f"dashboard-{name}-{width}-{theme}.webp")

    async def _save(self, page: Page, name: str) -> None:
        shot = await page.send("Page.captureScreenshot", format="webp", quality=82)
        (TARGET / name).write_bytes(base64.b64decode(shot["data"]))
        complaints = "; ".join(page.complaints) or "no complaints"
        print(f"{name}: {(TARGET / name).stat().st_size // 1024} KiB, {complaints}")


async def _take_all(chromium: str, names: list[str], directory: Path) -> None:
    ports = _free_ports("listen", "control", "engine", "history")
    settings = directory / "turnpike.toml"
    settings.write_text(_SETTINGS.format(**ports))
    control = f"http://127.0.0.1:{ports['control']}"
    store = ("--path", str(directory / "history"), "--listen", f"127.0.0.1:{ports['history']}")
    camera = _Camera(chromium, f"{control}/turnpike/", names)
    with ExitStack() as stack:
        engine = stack.enter_context(_running("gateway.tryout.engine", str(ports["engine"])))
        await _until(f"http://127.0.0.1:{ports['engine']}/health")
        stack.enter_context(_running("gateway", "serve", str(settings)))
        stack.enter_context(_running("gateway", "history", "--gateway", control, *store))
        await _until(f"{control}/turnpike/readyz")
        await camera.take("start", is_there="document.querySelector('.meter-name') !== null")
        where = f"http://127.0.0.1:{ports['listen']}/v1"
        with _running("gateway.tryout.agents", where, "16"):
            await asyncio.sleep(40)
            await camera.take("load", is_there="document.querySelectorAll('#rows .row').length > 8")
            sessions = _ask(f"{control}/turnpike/snapshot")["sessions"]
            longest = max(sessions, key=lambda each: each["turns"])["id"]
            decisions = "document.querySelectorAll('#view-session .decisions tbody tr').length > 0"
            await camera.take("session", f"#session={longest}", is_there=decisions)
        found = "document.querySelector('.found') !== null"
        await camera.take("history", "#history?range=86400", is_there=found, rests_s=1.0)
        engine.terminate()
        down = "document.querySelector('[data-state=down]') !== null"
        await camera.take("down", is_there=down)


def main(names: list[str]) -> None:
    with (
        running_chromium(require_command("chromium")) as chromium,
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory,
    ):
        asyncio.run(_take_all(chromium, names or list(NAMES), Path(directory)))


if __name__ == "__main__":
    main(sys.argv[1:])
