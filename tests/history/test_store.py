"""What is stored of records, and how it goes: nothing twice, no more than there is room."""

import json
import random
import sqlite3
import stat
from pathlib import Path

import msgspec
import pytest

from gateway.dashboard.explain import Explainer
from gateway.domain import records as rec
from gateway.domain.admission_records import WindowUpdated
from gateway.domain.decision import WaitReason
from gateway.domain.ids import PoolId, RequestId, SessionId
from gateway.history import answers, store
from gateway.history.answers import Answers, Look
from gateway.history.store import Batch, Store
from tests.core.playbook import Playbook, arrived, finished, first_token, left, started, stated
from tests.history.lives import B, arrival, begun, refused, sent, whole

GATEWAY = "http://gateway:8081"


def opened(path: Path, *, max_mb: int = 64, max_age_s: float = 1e12) -> Store:
    return Store(path, max_bytes=max_mb << 20, max_age_s=max_age_s)


def lines(records) -> list[bytes]:
    return [msgspec.json.encode(each) for each in records]


class RetainedRequest:
    """A history of one gateway; `take` and `answer`, as their threads would."""

    def __init__(self, path: Path, **how) -> None:
        self.path = path
        self.store = opened(path, **how)
        self.answers = Answers(path)
        self.taken = 0

    def take(self, records, gateway: str = GATEWAY) -> None:
        self.take_lines(lines(records), gateway)

    def take_lines(self, of: list[bytes], gateway: str = GATEWAY) -> None:
        self.taken += len(of)
        self.store.write(gateway, Batch(of, f"life:{self.taken}"))

    def turn(self, turn: str):
        return self.answers.turn(turn, {})

    def session(self, session: str, **query):
        encoded = self.answers.encoded(self.answers.session, session, query)
        return json.loads(encoded) if encoded is not None else None

    def look(self, **query):
        encoded = self.answers.encoded(self.answers.look, None, {"from_s": "0", "to_s": "1e9", **query})
        assert encoded is not None
        return json.loads(encoded)

    def counts(self) -> dict[str, int]:
        row = self.answers._db.execute("SELECT records, unreadable, gaps FROM gateways").fetchone()
        return dict(row)

    def close(self) -> None:
        self.answers.close()
        self.store.close()


@pytest.fixture
def kept(tmp_path):
    kept = RetainedRequest(tmp_path / "h.sqlite")
    yield kept
    kept.close()


def move(at_s: float, reason: str) -> WindowUpdated:
    return WindowUpdated(
        at_s=at_s, reason=reason, pool=PoolId("p"), sessions=4.0, kv_budget=None, admitted=1, waiting=0,
        demand=0.0, gpu_pressure=0.1, cpu_pressure=0.2,
    )  # fmt: skip


# --- what is answered --------------------------------------------------------------------------------------


class Run:
    """A coordinator under load whose records are stored a few at a time."""

    def __init__(self, kept: RetainedRequest) -> None:
        self.kept = kept
        self.play = Playbook(
            replicas="a b", max_running_per_replica=4, admission={"policy": "session-cap", "session_cap": 3}
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
        for at in range(self._taken, len(self.play.records), 3):
            self.kept.take(self.play.records[at : at + 3])
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


def test_a_turn_is_explained_as_memory_would(kept):
    rng, run = random.Random(5), Run(kept)
    for number in range(150):
        run.step(number, rng)
    assert len(run.turns) > 40 and run.waiting
    running = {state.facts.id: state.running for state in run.play.brain.fleet if state.is_up}
    sentences: list[str] = []
    for turn in run.turns:
        explainer = Explainer(RequestId(turn), running)
        explainer.read(run.play.records[::-1])
        memory, stored = explainer.explanation(), kept.turn(turn)
        assert memory is not None and stored is not None
        for name in ("turn", "known", "decided", "expected", "became", "why", "window", "records"):
            assert getattr(stored, name) == getattr(memory, name), (turn, name)
        assert {(each.replica, each.running) for each in stored.alternatives} == {
            (each.replica, each.running) for each in memory.alternatives
        }
        sentences += stored.why
    assert sum("It waited" in each for each in sentences) > 5
    assert any("over a limit" in each for each in sentences)
    assert kept.counts() == {"records": len(run.play.records), "unreadable": 0, "gaps": 0}


def test_the_window_and_how_quick_others_were(kept):
    waits = rec.TurnWaited(
        at_s=10.0, turn=RequestId("r"), session=SessionId("s"), reason=WaitReason.WINDOW_FULL, waiting=1
    )
    [came, *rest] = whole("r", "s", 10.0)
    kept.take([move(5.0, "healthy"), move(50.0, "later"), *whole("r0", "s0", 1.0, replica=B)])
    kept.take([move(6.0, "elsewhere")], gateway="http://other:8081")
    kept.take([came, waits, *sent("r1", "s1", 10.0, replica=B), *sent("r2", "s2", 10.0, replica=B), *rest])
    kept.take(whole("after", "s", 20.0, replica=B))
    found = kept.turn("r")
    assert found.window.reason == "healthy" and "Limit of pool p: 4 sessions" in found.why[0]
    [other] = found.alternatives
    assert (other.replica, other.running) == (B, 2)
    assert other.first_token_ms == pytest.approx(100.0), "60 tokens in 60 ms, and 100 are to be computed"
    assert kept.turn("r-none") is None


def test_a_session_its_kin_and_its_older_turns(kept, monkeypatch):
    kept.take(begun("root", 1.0) + whole("r1", "root", 1.0))
    kept.take(begun("s", 2.0, parent="root") + whole("r2", "s", 2.0) + refused("r3", "s", 4.0))
    kept.take(begun("child", 3.0, parent="s") + whole("r4", "child", 103.0, tenant="other"))
    page = kept.session("s")
    assert [row["session"] for row in page["kin"]] == ["root", "child"]
    assert [row["session"] for row in kept.session("child")["kin"]] == ["s", "root"][::-1]
    own = page["session"]
    assert (own["turns"], own["troubles"], own["parent"], own["schema"]) == (2, 1, "root", "codex")
    assert (own["prompt_tokens"], own["cached_tokens"], own["output_tokens"]) == (100, 60, 7)
    assert [turn["turn"] for turn in page["turns"]] == ["r2", "r3"] and not page["is_cut"]
    assert page["turns"][0]["records"] == json.loads(msgspec.json.encode(whole("r2", "s", 2.0)[:-2])) + (
        json.loads(msgspec.json.encode(whole("r2", "s", 2.0)[-2:]))
    )
    monkeypatch.setattr(answers, "_MAX_ROWS", 1)
    page = kept.session("s")
    assert [turn["turn"] for turn in page["turns"]] == ["r3"] and page["is_cut"]
    assert [turn["turn"] for turn in kept.session("s", before_s="4.0")["turns"]] == ["r2"]
    assert kept.session("s-none") is None


def test_a_session_that_ended_goes_on(kept):
    over = rec.SessionEnded(at_s=5.0, session=SessionId("s"), turns=1, reason="idle")
    kept.take([*begun("s", 1.0), *whole("r1", "s", 1.0), over])
    assert kept.session("s")["session"]["end_reason"] == "idle"
    kept.take(whole("r2", "s", 9.0))
    row = kept.session("s")["session"]
    assert (row["ended_s"], row["turns"], row["started_s"], row["last_s"]) == (None, 2, 1.0, 10.0)


def test_filters(kept):
    kept.take(begun("s1", 1.0) + whole("r1", "s1", 1.0) + refused("r2", "s1", 4.0))
    kept.take(begun("s2", 3.0) + whole("r3", "s2", 103.0, tenant="other", model="big"))
    kept.take([arrival("open", "s3", 105.0)])
    found = kept.look()
    assert (found["turns"], found["outcomes"], found["since_s"]) == (3, {"finished": 2, "refused": 1}, 2.0)
    assert found["percentiles"]["queue_ms"] == {"p50": 20.0, "p90": 100.0, "p99": 100.0}
    assert found["percentiles"]["first_token_ms"]["p50"] == 500.0

    def sessions(**query) -> list[str]:
        return [row["session"] for row in kept.look(**query)["sessions"]]

    assert sessions() == ["s3", "s2", "s1"] and sessions(limit="1") == ["s3"]
    assert sessions(tenant="other") == sessions(model="big") == sessions(session="s2") == ["s2"]
    assert sessions(trouble="1") == ["s1"] and sessions(session="s") == ["s3", "s2", "s1"]
    assert sessions(to_s="50") == ["s2", "s1"] and sessions(from_s="50") == ["s3", "s2"]
    assert kept.look(tenant="other")["sample"] == 1 and kept.look(trouble="1")["outcomes"] == {"refused": 1}
    assert kept.look(tenant="nobody")["percentiles"]["run_ms"] == {"p50": None, "p90": None, "p99": None}


def test_of_many_turns_a_sample_is_taken_that_is_spread_over_all(kept, monkeypatch):
    monkeypatch.setattr(answers, "_SAMPLE", 100)
    kept.take([each for number in range(1000) for each in whole(f"r{number}", "s", float(number))])
    found = kept.look(from_s="500", to_s="899.9")
    assert found["turns"] in (399, 400) and 90 <= found["sample"] <= 140


def test_a_look_has_bounds():
    look = Look.of({"from_s": "5", "to_s": "100", "tenant": "", "model": "m", "other": "x"})
    assert look == Look(from_s=5.0, to_s=100.0, model="m")
    assert Look.of({"to_s": "86500"}).from_s == 100.0
    for wrong in ({"limit": "501"}, {"limit": "0"}, {"from_s": "soon"}, {"to_s": "soon"}):
        with pytest.raises(ValueError, match=r"limit|float|number|could not"):
            Look.of(wrong)


def test_a_question_that_takes_too_long_is_given_up(kept, monkeypatch):
    kept.take([each for number in range(500) for each in whole(f"r{number}", "s", float(number))])
    monkeypatch.setattr(answers, "_DEADLINE_S", -1.0)
    kept.answers._db.set_progress_handler(lambda: True, 10)
    with pytest.raises(sqlite3.OperationalError, match="interrupted"):
        kept.look()


# --- what is stored ----------------------------------------------------------------------------------------


def test_what_was_written_is_there_for_the_next_process(kept):
    for number in range(3):
        kept.take(whole(f"r{number}", "s", 10.0 * number + 1))
    kept.close()
    again = RetainedRequest(kept.path)
    assert again.store.position(GATEWAY) == "life:18" and again.store.position("http://other") == ""
    row = again.session("s")["session"]
    assert (row["turns"], row["prompt_tokens"], row["started_s"], row["last_s"]) == (3, 300, 1.0, 22.0)
    kept.answers, kept.store = again.answers, again.store


def test_a_batch_that_breaks_off_changes_nothing(kept, monkeypatch):
    kept.take(whole("r1", "s", 1.0))
    merge, count = kept.store._merge, 0

    def breaks(gateway, line):
        nonlocal count
        count += 1
        if count > 3:
            raise sqlite3.OperationalError("database or disk is full")
        merge(gateway, line)

    monkeypatch.setattr(kept.store, "_merge", breaks)
    with pytest.raises(sqlite3.OperationalError):
        kept.store.write(GATEWAY, Batch(lines(whole("r2", "s", 3.0)), "life:99"))
    assert kept.turn("r2") is None and kept.store.position(GATEWAY) == "life:6"
    monkeypatch.undo()
    kept.take(whole("r2", "s", 3.0))
    assert kept.session("s")["session"]["turns"] == 2


def test_bad_records_cost_themselves_alone(kept):
    good = lines(whole("r1", "s", 1.0))
    huge = good[-2].replace(b'"prompt_tokens":100', b'"prompt_tokens":1%s' % (b"0" * 30))
    of_a_type = [b'{"type":"unheard"}', b'{"type":"gpu_end"}', b'{"type":"tool_num"']
    bad = [b"no JSON", b"", b"\xff", b"[]", *of_a_type]
    assert huge != good[-2]
    kept.take_lines([*bad, *good[:-2], huge, *bad, good[-1], *lines(whole("r2", "s", 3.0))])
    assert kept.counts()["unreadable"] == 2 * len(bad) + 1
    assert kept.turn("r2").became.outcome == "finished"
    assert kept.session("s")["session"]["turns"] == 2


def test_a_turn_takes_so_much_room_and_no_more(kept):
    kept.take([arrival("r", "s", 1.0)])
    for _ in range(20):
        kept.take([rec.ToolStart(at_s=2.0, turn=RequestId("r"), session=SessionId("s"), names=("n" * 9000,))])
    kept.take([rec.ToolStart(at_s=3.0, turn=RequestId("r2"), session=SessionId("s"), names=("n" * 20_000,))])
    sizes = dict(kept.answers._db.execute("SELECT turn, length(records) FROM turns").fetchall())
    assert sizes["r"] < 80_000 and sizes["r2"] == 0


def test_what_ran_is_forgotten_when_the_gateway_begins_anew(kept):
    kept.take([*sent("r0", "s0", 1.0, replica=B), *sent("r1", "s1", 1.0, replica=B)])
    kept.store.write(GATEWAY, Batch(lines(whole("r2", "s", 2.0)), "other-life:6", begins=True))
    assert kept.turn("r2").alternatives == []


def test_nothing_of_prompts_has_a_column(kept):
    columns = {
        row[1]
        for table in ("turns", "sessions", "windows", "gateways", "replicas")
        for row in kept.answers._db.execute(f"PRAGMA table_info({table})").fetchall()
    }
    assert "records" in columns and not columns & {"prompt", "arguments", "content", "text", "body", "key"}


# --- room, and whose the file is ---------------------------------------------------------------------------


def test_what_is_too_old_goes_a_part_at_a_time(tmp_path, monkeypatch):
    monkeypatch.setattr(store, "_ROWS_AT_ONCE", 10)
    kept = RetainedRequest(tmp_path / "h.sqlite", max_age_s=100.0)
    kept.take([move(1.0, "healthy"), *(x for n in range(25) for x in whole(f"r{n}", f"s{n}", 1.0 + n))])
    assert not kept.store.prune(now=100.0)
    steps = 0
    while kept.store.prune(now=112.5):
        steps += 1
        assert kept.turn("r11") is not None
    assert steps == 2 and kept.turn("r10") is None
    assert kept.session("s9") is None and kept.session("s12") is not None
    assert kept.answers._db.execute("SELECT count(*) FROM windows").fetchone()[0] == 0
    kept.close()


def test_it_stays_within_its_size_and_the_oldest_go_first(tmp_path):
    kept, number, largest = RetainedRequest(tmp_path / "h.sqlite", max_mb=16), 0, 0
    for _ in range(60):
        turns = range(number, number + 200)
        kept.take([each for n in turns for each in whole(f"r{n}", f"s{n % 97}", float(n))])
        number += 200
        while kept.store.prune(now=0.0):
            pass
        largest = max(largest, kept.path.stat().st_size)
    assert largest <= 16 << 20 and number * 1500 > 16 << 20
    assert kept.turn("r1") is None and kept.turn(f"r{number - 600}") is not None
    kept.close()


def test_only_its_owner_may_read_it(tmp_path, kept):
    kept.take(whole("r1", "s", 1.0))
    modes = {each.name: stat.S_IMODE(each.stat().st_mode) for each in tmp_path.iterdir()}
    assert len(modes) == 4 and set(modes.values()) == {0o600}, modes


def test_one_process_writes_it(kept):
    with pytest.raises(ValueError, match="another"):
        opened(kept.path)


@pytest.mark.parametrize("what", ["text", "sqlite", "version"])
def test_a_file_that_is_not_ours_is_left_alone(tmp_path, what):
    path = tmp_path / "h.sqlite"
    if what == "text":
        path.write_bytes(b"no database at all\n" * 1000)
    elif what == "sqlite":
        with sqlite3.connect(path) as other:
            other.execute("CREATE TABLE turns (mine TEXT)")
        other.close()
    else:
        opened(path).close()
        with sqlite3.connect(path) as newer:
            newer.execute("PRAGMA user_version = 99")
        newer.close()
    path.chmod(0o644)
    before = path.read_bytes()
    with pytest.raises(ValueError, match="no history of this version"):
        opened(path)
    assert path.read_bytes() == before and stat.S_IMODE(path.stat().st_mode) == 0o644


def test_rows_that_somebody_changed_are_read_as_far_as_they_go(kept):
    kept.take(begun("s", 1.0) + whole("r1", "s", 1.0) + whole("r2", "s", 3.0))
    with sqlite3.connect(kept.path) as other:
        other.execute(
            "UPDATE turns SET loads = 'no JSON', records = 'x' || char(10) || records WHERE turn = 'r1'"
        )
        other.execute("UPDATE turns SET records = 'nothing' WHERE turn = 'r2'")
        other.execute("INSERT INTO windows VALUES (?, 0.0, 'no record')", (GATEWAY,))
    other.close()
    assert kept.turn("r1").became.outcome == "finished" and kept.turn("r2") is None
    assert [turn["turn"] for turn in kept.session("s")["turns"]] == ["r1"]
    assert kept.look()["turns"] == 2
