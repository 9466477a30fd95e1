"""Alert rules on a gateway that has the fault; descriptors that run out; records reach their readers."""

import asyncio
import contextlib
import os
import re
import resource
import subprocess
from pathlib import Path

import pytest
import yaml

from gateway.domain import records as rec
from gateway.server.runtime.record_batcher import PERIOD_S, RecordBatcher
from gateway.upstream import local_faults
from tests.prerequisites import require_command
from tests.server.bench import DELTA, DONE, STREAM_HEAD, answer, chunk, eventually, get, post, sends
from tests.server.test_failed_answers import ERROR, event
from tests.server.test_failures import STREAM
from tests.telemetry.lines import as_lines

RULES = Path(__file__).parents[2] / "docker/prometheus/alerts.yaml"
SAMPLE = re.compile(r"^(turnpike_\w+)(?:\{(.*)\})? (\S+)$", re.MULTILINE)
GOOD = STREAM_HEAD + chunk(DELTA) + chunk(DONE) + b"0\r\n\r\n"
FAULTS = {
    "none": (GOOD, set()),
    "500s": (
        answer(b"{}", status=b"500 Internal Server Error"),
        {"RequestsFail", "AnswersBreak", "ReplicaEjected"},
    ),
    "errors inside 200s": (
        STREAM_HEAD + chunk(event(ERROR)) + chunk(DONE) + b"0\r\n\r\n",
        {"RequestsFail", "AnswersBreak", "ReplicaEjected"},
    ),
    "streams without an end": (
        STREAM_HEAD + b"0\r\n\r\n",
        {"RequestsFail", "AnswersBreak", "ReplicaEjected"},
    ),
    "no answer": (b"", {"RequestsFail", "AnswersBreak", "Refusing", "ReplicaEjected"}),
    "down": (None, {"NoReplica", "ReplicaDown", "AnswersBreak", "Refusing", "RequestsFail"}),
}


def samples(text: bytes) -> dict[tuple[str, str], float]:
    return {(name, labels): float(value) for name, labels, value in SAMPLE.findall(text.decode())}


def fired(before: bytes, after: bytes, folder: Path) -> set[str]:
    """What fires within 20 minutes, in each half of which happens what happened between the two."""
    old, new = samples(before), samples(after)
    series = []
    for (name, labels), value in new.items():
        if name.startswith("turnpike_loop_lag"):  # how busy this machine is, and no fault
            continue
        first = old.get((name, labels), 0.0)
        is_counter = name.endswith(("_total", "_bucket", "_count", "_sum"))
        values = f"{first}+{value - first}x40" if is_counter else f"{value}x40"
        series.append({"series": f'{name}{{{labels}{"," if labels else ""}instance="gw"}}', "values": values})
    asked = {"expr": 'ALERTS{alertstate="firing"}', "eval_time": "15m", "exp_samples": []}
    tests = [{"interval": "30s", "input_series": series, "promql_expr_test": [asked]}]
    path = folder / "tests.yaml"
    path.write_text(
        yaml.safe_dump({"rule_files": [str(RULES)], "evaluation_interval": "30s", "tests": tests})
    )
    command = [require_command("promtool"), "test", "rules", str(path)]
    done = subprocess.run(command, capture_output=True, text=True)
    told = done.stdout + done.stderr
    assert done.returncode == 0 or "got:" in told, told
    return set(re.findall(r'alertname=\\?"Turnpike(\w+)', told))


@pytest.mark.slow  # not slow, but `make check` does without promtool
@pytest.mark.parametrize(("raw", "alerts"), FAULTS.values(), ids=FAULTS)
async def test_the_fault_is_told_and_nothing_else(start, tmp_path, raw, alerts):
    bench = await start(replicas=2)
    for backend in bench.backends:
        backend.script = sends(raw or b"", then="" if raw else "reset")
        if raw is None:
            await backend.close()
    before = (await bench.control(get(b"/metrics"))).body
    for number in range(30):
        asked = STREAM if number % 2 else post()
        await bench.ask(asked.replace(b"hi", b"%d" % (10 + number)))
    assert fired(before, (await bench.control(get(b"/metrics"))).body, tmp_path) == alerts


# No connection is kept, so each request needs a new one; checks are left out, as they would reconnect.
NONE_KEPT = {"max_idle_connections": 0, "health_period_s": 3600}


@contextlib.contextmanager
def no_descriptors():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest_free = os.dup(0)
    os.close(lowest_free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def served(bench):
    client = await bench.send(post())
    assert (await client.receive()).status == 200
    return client


@pytest.mark.parametrize("path", [b"/v1/chat/completions", b"/v1/messages", b"/v1/responses"])
async def test_want_of_descriptors_is_a_503_and_leaves_the_replica_up(start, path):
    bench = await start(upstream=NONE_KEPT)
    client = await served(bench)
    sent = len(bench.backend.seen)
    for _ in range(4):
        with no_descriptors():
            client.send(post(path=path))
            response = await client.receive()
        assert response.status == 503 and int(response.get(b"retry-after") or 0) > 0
        error = response.json()["error"]
        assert error.get("code", "local_fault") == "local_fault"
        assert error["type"] == ("overloaded_error" if path == b"/v1/messages" else "server_error")
    assert len(bench.backend.seen) == sent
    (replica,) = bench.brain.fleet
    assert replica.is_up and bench.brain.fleet.health.all_up, "it is not blamed"
    client.send(post())
    assert (await client.receive()).status == 200
    metrics = (await bench.control(get(b"/metrics"))).body
    assert b'turnpike_local_faults_total{kind="file_descriptors"} 12.0' in metrics


async def test_a_session_stays_where_its_kv_cache_is(start):
    bench = await start(replicas=2, upstream=NONE_KEPT)
    named = post(headers=b"x-turnpike-session: s\r\n")
    client = await bench.send(named)
    home = (await client.receive()).get(b"x-turnpike-replica")
    with no_descriptors():
        client.send(named)
        assert (await client.receive()).status == 503
    client.send(named)
    response = await client.receive()
    assert response.get(b"x-turnpike-replica") == home
    assert response.get(b"x-turnpike-reason") == b"session_lives_there"


async def test_a_want_that_lasts_is_named_by_readiness(start, monkeypatch):
    monkeypatch.setattr(local_faults, "LASTING_S", 60.0)
    bench = await start(upstream=NONE_KEPT)
    client = await served(bench)
    with no_descriptors():
        client.send(post())
        await client.receive()
    assert (await bench.control(get(b"/turnpike/readyz"))).json()["failing"] == []
    faults = bench.gateway.telemetry._local_faults
    first, last = faults._spells["file_descriptors"]
    faults._spells["file_descriptors"] = (first - 60.0, last)
    told = (await bench.control(get(b"/turnpike/readyz"))).json()
    assert told["failing"] == ["connections to replicas (file_descriptors)"]
    client.send(post())
    await client.receive()
    assert (await bench.control(get(b"/turnpike/readyz"))).json()["failing"] == []


async def test_a_check_that_finds_no_descriptor_leaves_the_replica_up(start):
    bench = await start(upstream={**NONE_KEPT, "failures_until_down": 1})
    health = bench.gateway.replica_watch.health
    assert health._session is not None
    (replica,) = bench.gateway.replica_watch.replicas.values()
    await health._session.close()
    health._session = None  # the next one has no connections
    with no_descriptors():
        await health._check(replica)
    assert [state.is_up for state in bench.brain.fleet] == [True]
    assert (await bench.ask(post())).status == 200
    await bench.backend.close()
    await health._check(replica)
    await eventually(lambda: not any(state.is_up for state in bench.brain.fleet))


def some(*numbers: int) -> list[rec.Record]:
    return [rec.ToolNum(at_s=1.0, active=number) for number in numbers]


def readers(count: int) -> tuple[RecordBatcher, list[list[rec.Record]], list[int]]:
    heard: list[list[rec.Record]] = [[] for _ in range(count)]
    calls: list[int] = []

    def taker(number: int):
        def take(records: list[rec.Record]) -> None:
            heard[number] += records
            calls.append(number)

        return take

    return RecordBatcher([taker(number) for number in range(count)]), heard, calls


async def test_many_events_are_one_call_for_each_reader():
    handover, heard, calls = readers(3)
    for number in range(50):
        handover.take(some(number, -number))
    assert not calls
    await asyncio.sleep(3 * PERIOD_S)
    assert calls == [0, 1, 2]
    assert (
        heard[0] == heard[1] == heard[2] == [each for number in range(50) for each in some(number, -number)]
    )
    handover.take(some(7))
    await asyncio.sleep(3 * PERIOD_S)
    assert calls == [0, 1, 2] * 2 and heard[2][-1:] == some(7)


async def test_who_asks_has_everything_at_once_and_nothing_twice():
    handover, heard, calls = readers(1)
    handover.take(some(1))
    handover.flush()
    assert heard == [some(1)]
    handover.take(some(2))
    handover.flush()
    handover.flush()
    await asyncio.sleep(3 * PERIOD_S)
    assert heard == [some(1, 2)] and len(calls) == 2


async def test_a_flood_does_not_wait_for_its_time():
    handover, heard, _ = readers(1)
    for number in range(2500):
        handover.take(some(number))
        if number % 7 == 0:
            await asyncio.sleep(0)
    assert len(heard[0]) >= 2000


async def test_what_is_said_of_a_record_in_the_same_breath_is_known_to_its_readers():
    handover, heard, _ = readers(1)
    for number in range(600):
        handover.take(some(number))
    assert not heard[0]
    await asyncio.sleep(0)
    assert len(heard[0]) == 600


async def test_lines_are_made_once_and_of_the_same_records():
    records: list[rec.Record] = []
    heard: list[tuple[bytes, int]] = []
    handover = RecordBatcher([records.extend], [lambda *told: heard.append(told)] * 2)
    handover.take(some(1, 2))
    handover.flush()
    handover.flush()
    assert heard == [as_lines(records)] * 2 and heard[0][0] is heard[1][0]


async def test_what_one_reader_raises_the_others_do_not_feel(caplog):
    def fails(records: list[rec.Record]) -> None:
        raise RuntimeError("a reader")

    heard: list[rec.Record] = []
    handover = RecordBatcher([fails, heard.extend])
    for _ in range(2):
        handover.take(some(1))
        handover.flush()
    assert len(heard) == 2 and len(caplog.records) == 1
