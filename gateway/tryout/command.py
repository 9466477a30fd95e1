"""The command `turnpike try`."""

import argparse
import contextlib
import os
import socket
import subprocess
import sys
import threading
import time
import urllib.request
import webbrowser
from collections.abc import Callable, Iterator
from typing import Any, Final

from gateway.config import Config
from gateway.config.load import load_config
from gateway.config.server import split_listen
from gateway.server.http.listening import binding

_READY_WITHIN_S: Final = 30.0
# An agent here is done when it is silent; so a newcomer sees sessions that ended.
_SHORT: Final = {"sessions": {"idle_s": 60.0}}


def add_try(commands: Any, run_gateway: Callable[[Config], int]) -> None:
    what = "look at the gateway with a stub engine and a few agents, without a GPU"
    parser = commands.add_parser("try", help=what)
    add = parser.add_argument
    add("--agents", type=int, default=12, metavar="N", help="agents at a time (default 12)")
    add("--listen", metavar="HOST:PORT", help="where clients connect (default 127.0.0.1:8080)")
    add("--control", metavar="HOST:PORT", help="the control plane (default 127.0.0.1:8081)")
    add("--no-browser", action="store_true", help="do not open the dashboard")
    parser.set_defaults(command=lambda arguments: _try(arguments, run_gateway))


def _try(arguments: argparse.Namespace, run_gateway: Callable[[Config], int]) -> int:
    with contextlib.ExitStack() as stack:
        with socket.create_server(("127.0.0.1", 0)) as listening:
            engine = f"http://127.0.0.1:{listening.getsockname()[1]}"
        flags = {
            f"server.{name}": value
            for name in ("listen", "control")
            if (value := getattr(arguments, name)) is not None
        }
        config = load_config(
            None, os.environ, {"pools": [{"replicas": [{"url": engine}]}], **_SHORT, **flags}
        )
        for name in ("listen", "control"):  # else it would be another gateway that seems to be ready
            where = getattr(config.server, name)
            with binding(f"server.{name} (--{name})", where), socket.create_server(split_listen(where)):
                pass
        stack.enter_context(_beside("engine", engine.rpartition(":")[2]))
        _wait_for(f"{engine}/health")
        threading.Thread(target=_begin, args=(arguments, config, stack), daemon=True).start()
        return run_gateway(config)


def _begin(arguments: argparse.Namespace, config: Config, stack: contextlib.ExitStack) -> None:
    control = "{}:{}".format(*split_listen(config.server.control))
    page = f"http://{control}/turnpike/"
    if not _wait_for(f"{page}readyz"):
        return
    base_url = "http://{}:{}/v1".format(*split_listen(config.server.listen))
    stack.enter_context(_beside("agents", base_url, str(arguments.agents)))
    print(
        f"turnpike: {arguments.agents} agents loop at {base_url}; a stub answers them, at random\n"
        "turnpike: the stub knows /v1/chat/completions alone; a real engine has the other endpoints, too\n"
        f"turnpike: dashboard: {page}\n"
        "turnpike: your own agents: the same base URL, model `stub`, any key. Ctrl-C ends all",
        file=sys.stderr,
    )
    has_display = sys.platform == "darwin" or bool(
        os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    )
    if has_display and not arguments.no_browser:
        webbrowser.open(page)


@contextlib.contextmanager
def _beside(name: str, *words: str) -> Iterator[None]:
    command = [sys.executable, "-m", f"gateway.tryout.{name}", *words]
    with subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True) as process:
        try:
            yield
        finally:
            process.terminate()


def _wait_for(url: str) -> bool:
    until_s = time.monotonic() + _READY_WITHIN_S
    while time.monotonic() < until_s:
        try:
            with urllib.request.urlopen(url, timeout=5):
                return True
        except OSError:
            time.sleep(0.1)
    return False
