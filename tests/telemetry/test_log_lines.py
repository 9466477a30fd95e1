"""The log's lines: one for each change of state, few for refusals; as text and as JSON."""

import asyncio
import json
import logging
from collections import Counter

import pytest

from gateway.domain import records as rec
from gateway.domain.ids import ReplicaId
from gateway.telemetry import log_lines
from gateway.telemetry.log_lines import REFUSALS_EVERY_S, ChangeLog, JsonFormatter, RefusalLog, log_event


@pytest.fixture
def lines(caplog):
    caplog.set_level(logging.INFO, "gateway")
    return caplog


def changed(state: str, why: str) -> rec.ReplicaChanged:
    return rec.ReplicaChanged(at_s=1.0, replica=ReplicaId("r0"), state=state, why=why)


async def test_each_change_of_a_replica_is_a_line(lines):
    ChangeLog().log_replicas([changed("up", "is healthy"), changed("ejected", 'says "no"')])
    assert lines.messages == [
        'info replica_up replica=r0 cause="is healthy"',
        'warning replica_ejected replica=r0 cause="says \\"no\\""',
    ]
    up, ejected = [json.loads(JsonFormatter(3).format(record)) for record in lines.records]
    assert {key: up[key] for key in ("level", "event", "replica", "cause", "worker")} == {
        "level": "info", "event": "replica_up", "replica": "r0", "cause": "is healthy", "worker": 3,
    }  # fmt: skip
    assert ejected["level"] == "warning" and "message" not in ejected


async def test_what_changes_to_and_fro_is_told_now_and_then_and_its_newest_state_in_the_end(
    lines, monkeypatch
):
    monkeypatch.setattr(log_lines, "CHANGES_EVERY_S", 0.1)
    log = ChangeLog()
    for number in range(1001):
        log.log("store", logging.WARNING, f"store_{'up' if number % 2 else 'down'}", store="r")
    log.log("another", logging.INFO, "replica_up")
    assert [line.split()[1] for line in lines.messages] == [*["store_down", "store_up"] * 2, "replica_up"]
    await asyncio.sleep(0.35)
    assert lines.messages[5:] == ["warning store_down store=r count=997"] and not log._lately
    log.log("store", logging.INFO, "store_up", store="r")
    assert lines.messages[6:] == ["info store_up store=r"]


def test_refusals_are_counted_and_told_now_and_then(lines):
    counts = Counter({"queue_full": 1})
    log = RefusalLog(counts)
    log.tell(now=0.0)
    for second in range(1, 10):
        counts["queue_full"] += 1000
        log.tell(now=float(second))
    log.tell(now=REFUSALS_EVERY_S)
    log.tell(now=100.0)
    assert lines.messages == [
        "warning refused reason=queue_full count=1",
        "warning refused reason=queue_full count=9000",
    ]


def test_what_is_no_change_of_state_is_a_line_too(lines):
    log_event(logging.INFO, "drain", "draining; signal again", drain_s=3.0)
    try:
        raise ValueError("no")
    except ValueError:
        logging.getLogger("gateway.x").exception("it failed:\n%s", "twice")
    drain, failed = [json.loads(JsonFormatter(None).format(record)) for record in lines.records]
    assert (drain["message"], drain["drain_s"]) == ("draining; signal again", 3.0)
    assert (failed["event"], failed["message"]) == ("log", "it failed:\ntwice")
    assert "ValueError: no" in failed["trace"]
