"""The newest turns of a session, out of the ring."""

from gateway.dashboard import turn_log as module
from gateway.dashboard.turn_log import TurnLog
from gateway.domain import records as rec
from gateway.domain.admission_records import WindowUpdated
from gateway.domain.ids import PoolId, RequestId
from gateway.telemetry.ring import Ring
from tests.core.playbook import Playbook, arrived, finished, first_token, started, stated
from tests.telemetry.lines import as_lines

POOL = PoolId("pool")


class Told:
    """A brain whose stream goes to a ring."""

    def __init__(self, size: int = 10_000, **settings) -> None:
        self.play = Playbook(**settings)
        self.ring = Ring(size, 1 << 30)
        self.log = TurnLog(self.ring)

    def turn(self, name: str, session: str, *calls: str, **facts) -> None:
        play = self.play
        play.arrives(name, explicit=stated(session), **facts)
        play.now += 1.0
        play >> started(name) >> first_token(name)
        play.now += 1.0
        play >> finished(name, *calls)
        play.now += 1.0

    def read(self):
        self.ring.extend(*as_lines(self.play.records))
        self.play.records.clear()
        assert self.log.catch_up(100_000)
        return self.log.of(self.play.session.id)


def test_a_turn_as_it_goes_on():
    told = Told()
    told.turn("r1", "s", "c1")
    told.turn("r2", "s", tool_result_ids=("c1",))
    one, two = told.read()
    assert (one.turn, one.arrived_s, one.submitted_s, one.first_token_s, one.ended_s) == (
        "r1", 1000.0, 1000.0, 1001.0, 1002.0
    )  # fmt: skip
    assert (one.tools, one.tools_ended_s) == (("bash",), 1003.0)
    assert (two.replica, two.outcome, two.tools) == ("a", "finished", ())
    assert one.reason is not None and one.expected_first_token_ms is not None


def test_calls_that_are_recognised_late_ended_when_they_did():
    told = Told()
    told.turn("r1", "s")
    told.turn("r2", "s")
    session = told.play.session.id
    both = {"at_s": 1006.0, "session": session, "names": ("bash",)}
    told.play.records += [
        rec.ToolStart(**both, turn=RequestId("r1"), late_s=4.0),
        rec.ToolEnd(**both, turn=RequestId("r2"), duration_ms=1000.0, late_s=3.0),
    ]
    one, _ = told.read()
    assert (one.tools, one.tools_ended_s) == (("bash",), 1003.0)


def test_a_turn_that_waits_and_one_that_is_refused():
    told = Told(max_running_per_replica=1, max_waiting=1)
    play = told.play
    play.arrives("r1", explicit=stated("one"))
    play >> arrived("r2", explicit=stated("two"))
    [waits] = told.read()
    assert waits.wait_reason is not None and waits.submitted_s is None
    play.arrives("r3", explicit=stated("three"))
    [refused] = told.read()
    assert (refused.outcome, refused.refusal.value) == ("refused", "queue_full")


def test_it_takes_in_what_it_is_given_time_for_and_skips_what_is_lost(monkeypatch):
    monkeypatch.setattr(module, "TURNS_OF_A_SESSION", 3)
    told = Told(size=12)
    told.turn("r1", "s")
    told.ring.extend(*as_lines(told.play.records))
    assert not told.log.catch_up(1) and told.log.number == 1
    assert told.log.catch_up(100)
    told.play.records.clear()
    for number in range(2, 9):
        told.turn(f"r{number}", "s")
    turns = told.read()
    assert [turn.turn for turn in turns][-2:] == ["r7", "r8"] and len(turns) <= 3
    assert told.log.number == told.ring.last


def test_what_it_keeps_is_bounded(monkeypatch):
    monkeypatch.setattr(module, "MAX_SESSIONS", 5)
    monkeypatch.setattr(module, "MAX_OPEN", 7)
    told = Told()
    for number in range(30):
        told.turn(f"r{number}", f"s{number}")
    told.read()
    assert len(told.log._sessions) == 5 and len(told.log._turns) == 7


def test_a_session_that_ended_is_let_go():
    told = Told()
    told.turn("r1", "s")
    session = told.play.session.id
    told.read()
    told.ring.extend(*as_lines([rec.SessionEnded(at_s=1.0, session=session, turns=1, reason="idle")]))
    assert told.log.catch_up(10) and told.log.of(session) == ()
    assert not told.log._turns


def test_window_updates_are_kept_for_each_pool():
    told = Told()
    update = WindowUpdated(
        at_s=1.0, pool=POOL, sessions=1.0, kv_budget=None, admitted=1, waiting=0, demand=0.0,
        gpu_pressure=0.0, cpu_pressure=0.0, reason="x",
    )  # fmt: skip
    told.ring.extend(*as_lines([update] * 30))
    told.log.catch_up(100)
    assert len(told.log.updates(POOL)) == 20 and told.log.updates(PoolId("other")) == ()
