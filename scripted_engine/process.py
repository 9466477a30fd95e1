"""A scripted engine as a child process: started, waited for, and gone without leftovers.

It also ends with the process that started it, whatever ends that one.

::

    with ScriptedEngine({"scripts": {"hi": {"turns": [{"text": "Hello."}]}}}) as engine:
        ...  # POST engine.url + "/v1/chat/completions", a user message with [[script:hi]]

Standard library only; vLLM runs in the child.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self

from lab.engine import tiny_model
from scripted_engine import preloaded, script
from scripted_engine.guardian import guard
from scripted_engine.ports import free_port
from scripted_engine.voice import SCRIPT_VARIABLE

PROCESSOR = "scripted_engine.processor:ScriptedReply"
_HERE = str(Path(__file__).resolve().parents[1])
"""Where the engine finds this package, which is not installed."""
_STOP_S = 15.0
_LOG_TAIL_LINES = 40


class EngineStartError(RuntimeError):
    """The engine did not become healthy; the message ends with the tail of its log."""


@dataclass(frozen=True, kw_only=True)
class EngineOptions:
    """How an engine is started. The defaults suit tests on a small machine without a GPU."""

    model: Path | None = None
    """A model directory; None builds the tiny model."""
    served_model_names: tuple[str, ...] = ("scripted",)
    host: str = "127.0.0.1"
    port: int = 0
    """0 picks a free one."""
    api_key: str | None = None
    max_model_len: int = 131_072
    kv_cache_gib: int = 1
    block_size: int = 32
    """Tokens a KV block: the step in which prefixes are cached. A CPU wants a multiple of 32."""
    tool_call_parser: str = "hermes"
    is_scripted: bool = True
    """False starts a plain engine, for models that do not generate."""
    is_eager: bool = True
    """False captures graphs, which only a GPU has."""
    extra_args: tuple[str, ...] = ()
    """Further arguments of vLLM's API server, last on its command line (so they win)."""
    extra_env: Mapping[str, str] | None = None

    def command(self, model: Path, port: int) -> list[str]:
        """The API server's command line."""
        key = ["--api-key", self.api_key] if self.api_key else []
        return [
            *(sys.executable, "-m", "scripted_engine.server"),
            *("--model", str(model), "--load-format", "dummy"),
            *(("--enforce-eager",) if self.is_eager else ()),
            *("--served-model-name", *self.served_model_names),
            *("--host", self.host, "--port", str(port)),
            *("--max-model-len", str(self.max_model_len), "--block-size", str(self.block_size)),
            *("--enable-auto-tool-choice", "--tool-call-parser", self.tool_call_parser),
            "--enable-prompt-tokens-details",
            *(("--logits-processors", PROCESSOR) if self.is_scripted else ()),
            *(*key, *self.extra_args),
        ]

    def environment(self, script_path: Path, folder: Path | None = None) -> dict[str, str]:
        """The child's environment: offline, no usage reports, one thread per operation.

        Given ``folder``, its temporary files and sockets go there.
        """
        temporary = {} if folder is None else {"TMPDIR": str(folder), "VLLM_RPC_BASE_PATH": str(folder)}
        path = [_HERE, *filter(None, [os.environ.get("PYTHONPATH")])]
        return {
            **os.environ,
            "HF_HUB_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "VLLM_CPU_KVCACHE_SPACE": str(self.kv_cache_gib),
            "VLLM_ENABLE_RESPONSES_API_STORE": "1",
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join(path),
            SCRIPT_VARIABLE: str(script_path),
            **temporary,
            **(self.extra_env or {}),
        }


class ScriptedEngine:
    """A real vLLM API server that plays ``scripts`` (a script document, or the path of one)."""

    def __init__(self, scripts: Mapping[str, Any] | Path, options: EngineOptions | None = None) -> None:
        self.options = options or EngineOptions()
        self.port = self.options.port or free_port(self.options.host)
        self._scripts = scripts
        self._process: subprocess.Popen[bytes] | preloaded.Fork | None = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    @property
    def url(self) -> str:
        """The server's base URL, without ``/v1``."""
        return f"http://{self.options.host}:{self.port}"

    @property
    def log(self) -> str:
        """Everything the engine has printed so far."""
        return self._log_path.read_text(errors="replace") if self._folder else ""

    def launch(self) -> None:
        """Start the server and return at once. Raises ``ScriptError`` for a bad script."""
        if self._process is not None:
            raise RuntimeError("this engine is already running")
        if isinstance(self._scripts, Path):
            script.load(self._scripts)
        else:
            script.parse(self._scripts)
        guard()
        self._folder = tempfile.TemporaryDirectory(prefix="scripted-engine-")
        model = self.options.model or tiny_model.build()
        if not isinstance(self._scripts, Path):
            self.play(self._scripts)
        with self._log_path.open("wb") as log:
            self._process = self._begin(self.options.command(model, self.port), log)

    def _begin(self, command: Sequence[str], log: BinaryIO) -> "subprocess.Popen[bytes] | preloaded.Fork":
        folder = self._in_folder("")
        environment = self.options.environment(self._script_path, folder)
        if preloaded.is_forkable(command, environment):
            try:
                return preloaded.fork(command[3:], environment, str(folder), log)
            except OSError as error:
                raise EngineStartError(str(error)) from error
        return subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=folder,
            start_new_session=True,
        )

    def wait_healthy(self, deadline_s: float = 300.0) -> None:
        """Return once ``/health`` answers 200. Raises ``EngineStartError`` (and stops the engine)
        when the server ends first or ``deadline_s`` passes."""
        until = time.monotonic() + deadline_s
        while not self._is_healthy():
            ended = self._process is None or self._process.poll() is not None
            if ended or time.monotonic() > until:
                tail = "\n".join(self.log.splitlines()[-_LOG_TAIL_LINES:])
                self.stop()
                reason = "ended" if ended else f"was not healthy within {deadline_s:.0f} s"
                raise EngineStartError(f"the engine {reason}; its log ends:\n{tail}")
            time.sleep(0.2)

    def play(self, scripts: Mapping[str, Any]) -> None:
        """Replace the scripts; requests that arrive from now on follow them."""
        script.parse(scripts)
        partial = self._script_path.with_suffix(".new")
        partial.write_text(json.dumps(scripts))
        partial.replace(self._script_path)

    def stop(self) -> None:
        """End the server and every process it started. Safe to call twice."""
        process, self._process = self._process, None
        if process is not None:
            end_group(process.pid)
            process.wait(_STOP_S)
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None

    def __enter__(self) -> Self:
        try:
            self.launch()
            self.wait_healthy()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    @property
    def _log_path(self) -> Path:
        return self._in_folder("engine.log")

    @property
    def _script_path(self) -> Path:
        return self._scripts if isinstance(self._scripts, Path) else self._in_folder("script.json")

    def _in_folder(self, name: str) -> Path:
        if self._folder is None:
            raise RuntimeError("this engine is not running")
        return Path(self._folder.name) / name

    def _is_healthy(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=2) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False


@contextmanager
def scripted_fleet(
    scripts: Mapping[str, Any] | Path, options: Sequence[EngineOptions]
) -> Iterator[list[ScriptedEngine]]:
    """Several engines that start side by side; all are stopped at the end, whatever happens."""
    with ExitStack() as stack:
        engines = [ScriptedEngine(scripts, each) for each in options]
        for engine in engines:
            stack.callback(engine.stop)
            engine.launch()
        for engine in engines:
            engine.wait_healthy()
        yield engines


def end_group(group: int) -> None:
    """Ask the process group to end, then make it. vLLM's children outlive a killed parent."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        if not _group_lives(group):
            break
        os.killpg(group, number)
        until = time.monotonic() + _STOP_S
        while time.monotonic() < until and _group_lives(group):
            time.sleep(0.05)


def _group_lives(group: int) -> bool:
    """Whether a process of the group still runs; the dead that nobody has reaped do not count."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, its_group = path.read_text().rpartition(")")[2].split()[:3]
        except OSError:  # it ended while we looked
            continue
        if its_group == str(group) and state not in "ZX":
            return True
    return False
