"""A run of agents that is watched by everybody, and what they saw, held against one another.

Agents with stated sessions stream answers that carry tool calls, run their tools, and come again, more of
them than may be in at a time. The traces arrive at a receiver that decodes them with OpenTelemetry's
definitions, a real Prometheus asks for the metrics, the stream is in a file, and the brain's events are
recorded.
"""

import asyncio
import json
import random
import re
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any, Final

import aiohttp
import msgspec

from benchmarks.otlp_receiver import Receiver, attributes, children
from benchmarks.processes import ROOT, BenchmarkError, Pinning, free_port, guarded, upstream
from benchmarks.verdict import Verdict
from gateway.assembly import assemble
from gateway.dashboard.cli import explain_from_file
from gateway.domain.ids import RequestId
from gateway.telemetry.event_log import RecordedIds, decode_beginning, decode_entry, encode_answer

AGENTS: Final = 24
TURNS: Final = 6
PLACES: Final = 6
DECISIONS: Final = 100
_PATIENCE_S: Final = 20.0


def judge(directory: Path, verdict: Verdict) -> None:
    """Runs it, and compares."""
    pinning = Pinning.of_this_machine()
    with upstream(pinning.lifted(), engines=2, events=12, interval_ms=8) as backends, Receiver() as receiver:
        seen = _run(directory, backends, receiver)
        requests = seen["requests"]
        verdict.at_least("run_requests", len(requests), AGENTS * TURNS)
        _judge_traces(
            directory / "stream.jsonl", receiver, verdict, name="traces", sessions=AGENTS, is_streamed=True
        )
        _judge_explanations(directory / "stream.jsonl", requests, seen["explained"], verdict)
        _judge_replay(directory / "events.jsonl", verdict)
        verdict.at_most("prometheus_turns_missed", seen["prometheus_missed"], 0)
        verdict.at_most("promtool_complaints", seen["complaints"], 0)


def judge_demo(verdict: Verdict) -> None:
    """The demo: real agents on real vLLM servers. Its traces arrive, and every request is explained."""
    with Receiver() as receiver:
        command = [sys.executable, "-m", "demo", "--json", "--no-stay", "--traces", receiver.endpoint]
        demo = subprocess.run(
            command, cwd=ROOT, stdout=subprocess.PIPE, text=True, env=guarded(), check=False
        )  # fmt: skip
        if demo.returncode:
            raise BenchmarkError(f"the demo ended with status {demo.returncode}: {demo.stdout}")
        stream = Path(json.loads(demo.stdout.splitlines()[-1])["stream"])
        _judge_traces(stream, receiver, verdict, name="demo_traces", sessions=1)
    records = [json.loads(line) for line in stream.read_text().splitlines()]
    requests = [record["turn"] for record in records if record["type"] == "gpu_submit"]
    explained = [explain_from_file(stream, RequestId(request)) for request in requests]
    silent = sum(each is None or each.known is None or len(each.why) < 2 for each in explained)
    verdict.at_least("demo_requests", len(requests), 1)
    verdict.at_most("demo_explain_unanswered", silent, 0)


def ports_when_ready(log: Path, process: "subprocess.Popen[bytes]", *, within_s: float) -> tuple[int, int]:
    """Of a gateway that writes this log: its port, and the control listener's."""
    until = time.monotonic() + within_s
    while time.monotonic() < until and process.poll() is None:
        found = re.search(r"listening on https?://\S+:(\d+), control on port (\d+)", log.read_text())
        if found:
            try:
                _get(int(found[2]), "/turnpike/readyz")
                return int(found[1]), int(found[2])
            except urllib.error.URLError:
                pass
        time.sleep(0.05)
    raise BenchmarkError(f"the gateway did not become ready: {log.read_text()}")


# --- the run ---------------------------------------------------------------------------------------------


def _run(directory: Path, backends: list[int], receiver: Receiver) -> dict[str, Any]:
    replicas = ", ".join(f'{{ url = "http://127.0.0.1:{port}" }}' for port in backends)
    file, log = directory / "turnpike.toml", directory / "log"
    file.write_text(
        '[server]\nlisten = "127.0.0.1:0"\ncontrol = "127.0.0.1:0"\n'
        f'[stream]\npath = "{directory}/stream.jsonl"\n[recording]\npath = "{directory}/events.jsonl"\n'
        f'[otel]\nendpoint = "{receiver.endpoint}"\n'
        f'[admission]\npolicy = "session-cap"\nsession_cap = {PLACES}\n[[pools]]\nreplicas = [{replicas}]\n'
    )
    with log.open("w") as written:
        process = subprocess.Popen(
            [sys.executable, "-m", "gateway", "serve", str(file)],
            cwd=ROOT,
            stderr=written,
            env=guarded(),
        )
    try:
        port, control = ports_when_ready(log, process, within_s=60.0)
        prometheus = _start_prometheus(directory, control)
        try:
            requests = asyncio.run(_agents(port))
            explained = [_get(control, f"/turnpike/turns/{request}") for request in requests]
            missed = _missed_by_prometheus(prometheus[1], len(requests)) if prometheus else None
        finally:
            if prometheus:
                prometheus[0].terminate()
                prometheus[0].wait()
        complaints = _complaints(control)
    finally:
        process.terminate()
        process.wait(60)
    return {
        "requests": requests,
        "explained": explained,
        "prometheus_missed": missed,
        "complaints": complaints,
    }


async def _agents(port: int) -> list[str]:
    requests: list[str] = []
    async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as http:
        await asyncio.gather(*(_agent(http, number, requests) for number in range(AGENTS)))
    return requests


async def _agent(http: aiohttp.ClientSession, number: int, requests: list[str]) -> None:
    rng = random.Random(number)
    messages: list[Any] = [{"role": "user", "content": f"task {number}"}]
    for turn in range(TURNS):
        headers = {"x-turnpike-session": f"agent-{number}"}
        if turn == TURNS - 1:
            headers["x-turnpike-final"] = "true"
        body = {"model": "bench-model", "messages": messages, "stream": True}
        async with http.post("/v1/chat/completions", json=body, headers=headers) as answer:
            if answer.status != 200:
                raise BenchmarkError(f"status {answer.status}: {await answer.text()}")
            requests.append(answer.headers["x-turnpike-request"])
            text = (await answer.read()).decode()
        found = re.search(r'"id":\s*"(chatcmpl-tool-[0-9a-f]{32})"', text)
        if found is None:
            raise BenchmarkError("an answer carried no tool call")
        function = {"name": "bash", "arguments": "{}"}
        messages += [
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"id": found[1], "type": "function", "function": function}],
            },
            {"role": "tool", "tool_call_id": found[1], "content": f"done {turn}"},
        ]
        await asyncio.sleep(rng.uniform(0.02, 0.2))


# --- traces against the stream ---------------------------------------------------------------------------


def _judge_traces(
    stream: Path, receiver: Receiver, verdict: Verdict, *, name: str, sessions: int, is_streamed: bool = False
) -> None:
    """`sessions`: at least so many were there. `is_streamed`: every turn was, so it has a first token."""
    turns: dict[str, dict[str, Any]] = {}
    tool_ms: dict[str, list[float]] = {}
    """By session, in order."""
    started = set()
    for line in stream.read_text().splitlines():
        record = json.loads(line)
        kind = record["type"]
        if kind == "session_start":
            started.add(record["session"])
            tool_ms.setdefault(record["session"], [])
        if "turn" in record:
            turns.setdefault(record["turn"], {})[kind] = record
        if kind == "tool_end":
            tool_ms[record["session"]].append(record["duration_ms"])
    below = children(receiver.spans)
    roots = {attributes(root)["gen_ai.conversation.id"]: root for root in below.get(b"", [])}
    incomplete, differences_ms = 0, [0.0]
    for session in started:
        root = roots.get(session)
        mine = below.get(root.span_id, []) if root is not None else []
        named = [(attributes(span).get("turnpike.request"), span) for span in mine]
        asked = {request: span for request, span in named if request is not None}
        phases = sorted(_ms(span) for span in mine if span.name.startswith("execute_tool"))
        own = {each: told for each, told in turns.items() if _session_of(told) == session}
        if root is None or set(asked) != set(own) or len(phases) != len(tool_ms[session]):
            incomplete += 1
            continue
        differences_ms += [abs(a - b) for a, b in zip(phases, sorted(tool_ms[session]), strict=True)]
        for each, told in own.items():
            expected = _expected_ms(told)
            parts = {span.name: _ms(span) for span in below.get(asked[each].span_id, [])}
            incomplete += set(parts) != set(expected) or (is_streamed and "decode" not in expected)
            differences_ms += [abs(parts[part] - ms) for part, ms in expected.items() if part in parts]
            if "gpu_end" in told:
                took_ms = (told["gpu_end"]["at_s"] - told["turn_arrive"]["at_s"]) * 1e3
                differences_ms.append(abs(_ms(asked[each]) - took_ms))
    verdict.at_least(f"{name}_sessions", len(started), sessions)
    verdict.at_most(f"{name}_incomplete", incomplete, 0)
    verdict.at_most(f"{name}_worst_difference_ms", max(differences_ms), 5)
    verdict.tell(f"{name}_spans", len(receiver.spans))


def _session_of(told: dict[str, Any]) -> str | None:
    """None of what is no turn, such as a question for the models."""
    session: str | None = told.get("turn_arrive", {}).get("session")
    return session


def _expected_ms(told: dict[str, Any]) -> dict[str, float]:
    """The parts of a turn that was sent once at most, by what the stream says."""
    parts = {}
    if "turn_wait" in told:
        parts["queue"] = told["routing"]["waited_ms"] if "routing" in told else 0.0
    if "gpu_submit" in told and "gpu_end" in told:
        took_ms = (told["gpu_end"]["at_s"] - told["gpu_submit"]["at_s"]) * 1e3
        first = told.get("gpu_1st_token")
        parts["prefill"] = first["launch_delay_ms"] if first is not None else took_ms
        if first is not None:
            parts["decode"] = took_ms - first["launch_delay_ms"]
    return parts


def _ms(span: Any) -> float:
    return float((span.end_time_unix_nano - span.start_time_unix_nano) / 1e6)


# --- explanations and replay -----------------------------------------------------------------------------


def _judge_explanations(
    stream: Path, requests: list[str], explained: list[dict[str, Any]], verdict: Verdict
) -> None:
    silent = waited = 0
    for request, told in zip(requests, explained, strict=True):
        from_file = explain_from_file(stream, RequestId(request))
        live = json.dumps([told["decided"], told["why"][0], told["known"]], sort_keys=True)
        if from_file is None:
            silent += 1
            continue
        filed = msgspec.to_builtins([from_file.decided, from_file.why[0], from_file.known])
        is_told = told["known"] is not None and len(told["why"]) >= 2 and told["decided"]["replica"]
        has_waited = told["decided"]["queue_ms"] > 0
        is_told = is_told and told["why"][0].startswith("It waited" if has_waited else "It did not wait")
        waited += has_waited
        silent += not is_told or live != json.dumps(filed, sort_keys=True)
    verdict.at_most("explain_unanswered", silent, 0)
    verdict.at_least("explain_waited", waited, 1)


def _judge_replay(log: Path, verdict: Verdict) -> None:
    """Decisions drawn at random: what was known is told again, to a brain that knows nothing else."""
    lines = iter(log.read_bytes().splitlines())
    beginning = decode_beginning(next(lines))
    ids = RecordedIds()
    brain = assemble(beginning.settings, session_ids=ids)
    decided: list[bool] = []
    for line in lines:
        entry = decode_entry(line)
        ids.read(entry)
        again, _ = encode_answer(brain.handle(entry.event, now=entry.at_s))
        then = json.loads(bytes(entry.commands))
        now = json.loads(again)
        for number, decision in enumerate(then):
            decided.append(number < len(now) and decision == now[number])
    drawn = random.Random(7).sample(decided, min(DECISIONS, len(decided)))
    verdict.at_least("replay_decisions", len(drawn), DECISIONS)
    verdict.at_most("replay_differences", drawn.count(False), 0)


# --- Prometheus ------------------------------------------------------------------------------------------


def _start_prometheus(directory: Path, control: int) -> "tuple[subprocess.Popen[bytes], int] | None":
    found = shutil.which("prometheus")
    if found is None:
        print("prometheus is not installed (Debian, Ubuntu: apt-get install prometheus)")
        return None
    port = free_port()
    settings = directory / "prometheus.yml"
    settings.write_text(
        "global: {scrape_interval: 1s}\n"
        f'rule_files: ["{ROOT}/docker/prometheus/alerts.yaml"]\n'
        "scrape_configs:\n  - job_name: turnpike\n"
        f'    static_configs: [{{targets: ["127.0.0.1:{control}"]}}]\n'
    )
    command = [found, f"--config.file={settings}", f"--storage.tsdb.path={directory}/tsdb",
               f"--web.listen-address=127.0.0.1:{port}", "--log.level=error"]  # fmt: skip
    process = subprocess.Popen(command, env=guarded())
    return process, port


def _missed_by_prometheus(port: int, turns: int) -> int:
    """Turns that it does not know of, of those that there were."""
    until, known = time.monotonic() + _PATIENCE_S, 0.0
    while time.monotonic() < until:
        try:
            result = _get(port, "/api/v1/query?query=sum(turnpike_turns_total)")["data"]["result"]
            known = float(result[0]["value"][1]) if result else 0.0
        except (urllib.error.URLError, ConnectionError):
            pass
        if known >= turns:
            break
        time.sleep(0.2)
    return int(abs(turns - known))


def _complaints(control: int) -> int | None:
    promtool = shutil.which("promtool")
    if promtool is None:
        return None
    with urllib.request.urlopen(f"http://127.0.0.1:{control}/metrics", timeout=10) as answer:
        text = answer.read()
    done = subprocess.run([promtool, "check", "metrics"], input=text, capture_output=True)
    print(done.stderr.decode(), end="")
    return len(done.stderr.splitlines()) if done.returncode else 0


def _get(port: int, path: str) -> Any:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
        return json.load(answer)
