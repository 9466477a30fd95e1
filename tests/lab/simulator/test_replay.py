"""Replaying says where a brain answers otherwise. (That it does not, every test of the server checks.)"""

import pytest

from gateway.__main__ import main
from gateway.assembly import assemble
from gateway.config.load import load_config
from gateway.core import events as ev
from gateway.domain.fleet import ReplicaFacts
from gateway.domain.ids import PoolId, ReplicaId, RequestId, TenantId
from gateway.domain.request import Protocol, RequestFacts, Work
from gateway.domain.session_ids import keyed_ids
from gateway.telemetry.recorder import Recorder


@pytest.fixture
def log(tmp_path):
    path = tmp_path / "events"
    tree = {"pools": [{"replicas": [{"url": "http://a"}]}], "recording": {"path": str(path)}}
    config = load_config(None, {}, tree)
    brain, recorder = assemble(config, session_ids=keyed_ids(b"a secret of 16 B")), Recorder(config)
    facts = RequestFacts(protocol=Protocol.CHAT, work=Work.GENERATE)
    told: list[ev.Event] = [
        ev.ReplicaCameUp(ReplicaFacts(id=ReplicaId("default-0"), pool=PoolId("default"))),
        ev.RequestArrived(RequestId("r"), TenantId("t"), facts),
        ev.ClientLeft(RequestId("r")),
    ]
    for at, event in enumerate(told):
        recorder.answered(brain.handle(recorder.told(event), now=float(at)), now=float(at))
    recorder.close()
    return path


def test_what_was_recorded_is_answered_alike(log, capsys):
    assert main(["replay", str(log)]) == 0
    assert "3 events" in capsys.readouterr().out


def test_another_answer_is_shown(log, capsys):
    lines = log.read_bytes()
    assert b'"at_s":1.0' in lines
    log.write_bytes(lines.replace(b'"at_s":1.0', b'"at_s":1.5', 1))
    assert main(["replay", str(log)]) == 1
    shown = capsys.readouterr().out
    assert "line 3, RequestArrived" in shown and "recorded" in shown and "replayed" in shown


@pytest.mark.parametrize("spoilt", [b"", b"{}\n%s", b"%s{\n"])
def test_what_is_no_log_is_refused(log, capsys, spoilt):
    log.write_bytes(spoilt.replace(b"%s", log.read_bytes()))
    assert main(["replay", str(log)]) == 1
    assert "turnpike: " in capsys.readouterr().err


def test_a_log_is_a_workload(log, tmp_path, capsys):
    target = str(tmp_path / "w.jsonl")
    assert main(["workload", "import", "turnpike", str(log), "-o", target]) == 1
    assert "nothing" in capsys.readouterr().err, "its only turn has no tokens"


def test_a_log_names_its_sessions_and_not_the_key_of_names(log, capsys):
    key = b"a secret of 16 B"
    first = next(keyed_ids(key))
    kept = log.read_bytes()
    assert first.encode() in kept and key not in kept and key.hex().encode() not in kept
    log.write_bytes(kept.replace(b'"session_start"', b'"session_stop"'))
    assert main(["replay", str(log)]) == 1
    assert "s-not-recorded" in capsys.readouterr().out, "a session that nobody started is a difference"
