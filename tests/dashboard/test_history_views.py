"""What is told from the history: the same as from memory; and of several gateways as one."""

import random
import time

import msgspec
import pytest

from gateway.config.history import HistoryConfig
from gateway.dashboard.explain import Explainer
from gateway.dashboard.history_views import Look, explained, look_back, merge_looks, merge_session_pages
from gateway.domain import records as rec
from gateway.domain.admission_records import WindowUpdated
from gateway.domain.decision import WaitReason
from gateway.domain.ids import PoolId, ReplicaId, RequestId, SessionId
from gateway.history import writer
from gateway.history.reader import StoredTurn
from gateway.history.spread import buckets, percentile
from gateway.history.store import History
from tests.core.playbook import Playbook, arrived, finished, first_token, left, started, stated
from tests.history.lives import A, B, begun, refused, whole


async def kept(tmp_path, name, records):
    """A store that was written and opened again."""
    config = HistoryConfig(path=str(tmp_path / name))

    def opened() -> History:
        return History(config, running=lambda: {A: 0}, clock=time.time, monotonic=time.monotonic)

    history = opened()
    history.take(records)
    await history.close()
    return opened()


class Run:
    """A brain under load whose records are handed to a store, as a gateway does."""

    def __init__(self, path) -> None:
        self.play = Playbook(
            replicas="a b", max_running_per_replica=4, admission={"policy": "session-cap", "session_cap": 3}
        )
        self.running: dict[ReplicaId, int] = {}
        self.history = History(
            HistoryConfig(path=str(path)),
            running=lambda: self.running,
            clock=lambda: self.play.now,
            monotonic=time.monotonic,
        )
        self.waiting: list[str] = []
        self.live: list[str] = []
        self.turns: list[str] = []
        self._taken = 0
        self.send()

    def send(self, *events) -> None:
        for event in events:
            self.play >> event
            while self.play.decisions:
                sent = self.play.take().request
                self.waiting.remove(sent)
                self.live.append(sent)
        states = self.play.brain.fleet
        self.running = {state.facts.id: state.running for state in states if state.is_up}
        self.history.take(self.play.records[self._taken :])
        self._taken = len(self.play.records)

    def step(self, number: int, rng: random.Random) -> None:
        self.play.now += 0.3
        if self.live and rng.random() < 0.5:
            gone = self.live.pop(rng.randrange(len(self.live)))
            self.send(started(gone), first_token(gone), finished(gone))
        elif self.waiting and rng.random() < 0.1:
            self.send(left(self.waiting.pop()))
        else:
            name = f"r{number}"
            self.turns.append(name)
            self.waiting.append(name)
            session = stated(f"s{rng.randrange(8)}-{number // 20}")
            self.send(arrived(name, explicit=session, body_bytes=900 * number, stream=True))


async def test_what_is_explained_is_what_the_stream_would_have_explained(tmp_path, monkeypatch):
    monkeypatch.setattr(writer, "_PERIOD_S", 0.02)
    rng, run = random.Random(5), Run(tmp_path / "h")
    for number in range(150):
        run.step(number, rng)
    assert len(run.turns) > 40 and run.waiting
    await run.history.close()
    history = History(
        HistoryConfig(path=str(tmp_path / "h")), running=dict, clock=time.time, monotonic=time.monotonic
    )
    said: list[str] = []
    for turn in run.turns:
        explainer = Explainer(RequestId(turn), run.running)
        explainer.read(run.play.records[::-1])
        found = await history.turn(RequestId(turn))
        assert found is not None
        streamed, stored = explainer.explanation(), explained(found)
        assert streamed is not None and stored is not None
        for name in ("turn", "known", "decided", "expected", "became", "why", "window", "records"):
            assert getattr(stored, name) == getattr(streamed, name), (turn, name)
        assert {(each.replica, each.running) for each in stored.alternatives} == {
            (each.replica, each.running) for each in streamed.alternatives
        }
        said += stored.why
    assert sum("It waited" in each for each in said) > 5 and any("had no place" in each for each in said)
    await history.close()


def test_the_window_and_how_quick_others_were_are_told():
    moved = WindowUpdated(
        at_s=5.0, pool=PoolId("p"), sessions=4.0, kv_budget=None, admitted=4, waiting=1, demand=0.0,
        gpu_pressure=0.1, cpu_pressure=0.2, reason="healthy",
    )  # fmt: skip
    waits = rec.TurnWaited(
        at_s=10.0, turn=RequestId("r"), session=SessionId("s"), reason=WaitReason.WINDOW_FULL, waiting=1
    )
    [came, *rest] = whole("r", "s", 10.0)
    before = [each for each in whole("r0", "s0", 1.0, replica=B) if isinstance(each, rec.GpuSubmit)]
    told = explained(
        StoredTurn(RequestId("r"), SessionId("s"), [came, waits, *rest], {A: 0, B: 3}, before, moved)
    )
    assert told is not None
    assert told.window == moved and "The window of p was 4 sessions" in told.why[0]
    [other] = told.alternatives
    assert (other.replica, other.running) == (B, 3)
    assert other.first_token_ms == pytest.approx(100.0), "60 tokens in 60 ms, and 100 are to be computed"


async def test_several_gateways_are_added_up(tmp_path):
    one = await kept(tmp_path, "one", [*begun("s", 1.0), *whole("r1", "s", 1.0), *whole("r2", "alone", 5.0)])
    other = await kept(tmp_path, "other", [*whole("r3", "s", 9.0), *refused("r4", "s", 11.0)])
    look = Look(from_s=0.0, to_s=100.0)
    answers = [msgspec.json.decode(msgspec.json.encode(await look_back(each, look))) for each in (one, other)]
    told = merge_looks(answers)
    assert told["turns"] == 4 and told["outcomes"] == {"finished": 3, "refused": 1}
    assert told["percentiles"]["run_ms"]["p50"] == pytest.approx(1000.0, rel=0.03)
    assert told["percentiles"]["queue_ms"]["p99"] == pytest.approx(100.0, rel=0.03)
    assert [(row["session"], row["turns"], row["troubles"]) for row in told["sessions"]] == [
        ("s", 3, 1),
        ("alone", 1, 0),
    ]
    assert (told["since_s"], told["sessions"][0]["started_s"]) == (2.0, 1.0)

    async def page(history):
        found = await history.session("s")
        turns = [{"turn": turn, "records": records} for turn, records in found.turns]
        page = {"session": found.session, "kin": found.kin, "turns": turns, "is_cut": found.is_cut}
        return msgspec.json.decode(msgspec.json.encode(page))

    told = merge_session_pages([await page(other), await page(one)])
    assert [turn["turn"] for turn in told["turns"]] == ["r1", "r3", "r4"] and told["session"]["turns"] == 3
    await one.close()
    await other.close()


def test_a_look_has_bounds():
    look = Look.of({"from_s": "5", "tenant": "", "model": "m", "other": "x"}, now=100.0)
    assert look == Look(from_s=5.0, to_s=100.0, model="m")
    assert Look.of({"to_s": "86500"}, now=9e9).from_s == 100.0
    for wrong in ({"limit": "501"}, {"limit": "0"}, {"from_s": "soon"}, {"to_s": "soon"}):
        with pytest.raises(ValueError, match=r"limit|float|number|could not"):
            Look.of(wrong, now=1.0)


def test_percentiles_are_close_and_can_be_added_up():
    rng = random.Random(1)
    values = [rng.lognormvariate(5, 2) for _ in range(5000)]
    halves = buckets(values[:2000]), buckets(values[2000:])
    both = {bucket: sum(half.get(bucket, 0) for half in halves) for half in halves for bucket in half}
    for share in (0.01, 0.5, 0.9, 0.99, 1.0):
        true = sorted(values)[max(0, round(share * 5000) - 1)]
        assert percentile(both, share) == pytest.approx(true, rel=0.026)
    assert percentile(buckets([0.0, 0.0, 7.0]), 0.5) == 0.0 and percentile({}, 0.5) is None
