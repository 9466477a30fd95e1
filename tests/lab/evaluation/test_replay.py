"""Recordings, replayed by one gateway and by several, from the command line; strangers, and next prompts."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gateway.__main__ import main
from lab.evaluation.adversarial import KINDS, stage_kind
from lab.evaluation.cli import evaluate_sessions
from lab.evaluation.gateways import SharedReplays
from lab.evaluation.metrics import score
from lab.evaluation.next_prompts import follow
from lab.evaluation.recording import Exchange, read_recording
from lab.evaluation.replay import Placed, replay
from tests.lab.evaluation.recordings import Recorder


def one(**fields) -> Exchange:
    recorder = Recorder()
    recorder.exchange("s", [{"role": "user", "content": "Hi"}], **fields)
    return msgspec.convert(recorder.lines[0], Exchange)


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz", "a.jsonl.xz"])
def test_every_packing_is_read_in_order_of_arrival(tmp_path, name):
    recorder = Recorder()
    recorder.run("a")
    recorder.lines.reverse()
    found = read_recording(recorder.write(tmp_path / name))
    assert [exchange.t for exchange in found] == [1001, 1002, 1003, 1004]
    assert found[0].truth.session == "a" and found[0].is_turn


def test_a_line_that_cannot_be_read_is_named(tmp_path):
    path: Path = tmp_path / "a.jsonl"
    path.write_text("\n{}\n")
    with pytest.raises(ValueError, match="line 2"):
        read_recording(path)


def test_ids_are_hidden_on_request():
    exchange = one(
        headers={"Session-Id": "s"},
        body={"prompt_cache_key": "s", "metadata": {}, "conversation": "c", "previous_response_id": "r"},
    )
    assert (b"session-id", b"s") in exchange.header_lines(without_ids=False)
    assert exchange.header_lines(without_ids=True) == [(b"user-agent", b"tiny/1")]
    body = msgspec.json.decode(exchange.body_bytes(without_ids=True))
    assert "prompt_cache_key" not in body and {"conversation", "previous_response_id"} <= body.keys()
    assert "prompt_cache_key" in msgspec.json.decode(exchange.body_bytes(without_ids=False))


def test_answers_of_every_protocol():
    call = {"id": "call_a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    chat = one(response={"role": "assistant", "content": "Hi", "tool_calls": [call]}).answer()
    item = {"type": "function_call", "call_id": "call_a", "name": "f", "arguments": "{}"}
    responses = one(response=[item], path="/v1/responses").answer()
    block = {"type": "tool_use", "id": "call_a", "name": "f", "input": {}}
    messages = one(response=[block], path="/v1/messages?beta=true").answer()
    for answer in (chat, responses, messages):
        assert [made.id for made in answer.tool_calls] == ["call_a"] and answer.has_terminal
    assert responses.state_ids == ("chatcmpl-1",)


def test_answers_that_never_came():
    assert one(status=429, fault={"retry_after": 3}).answer().retry_after_s == 3
    assert one(status=503).answer().status == 503 and one(status=0).answer().status == 502
    assert not one(response={"content": "Hi"}, cut_after=4).answer().has_terminal


@pytest.mark.parametrize(
    ("fields", "has_left"),
    [
        ({"client_disconnected": True, "response": {}}, False),  # a close behind the last event
        ({"client_disconnected": True, "response": {}, "fault": {"s": 12}}, True),
        ({"client_disconnected": True, "response": {}, "fault": {"s": 0.1}}, False),
        ({"client_disconnected": True}, True),
        ({}, False),
    ],
)
def test_who_left_before_the_answer(fields, has_left):
    exchange = one(**fields)
    assert exchange.has_left_early is has_left
    assert exchange.is_broken is has_left


def place(recorder: Recorder, *, without_ids: bool = True) -> list[Placed]:
    return replay(msgspec.convert(recorder.lines, list[Exchange]), without_ids=without_ids)


def test_runs_are_told_apart():
    recorder = Recorder()
    recorder.run("a")
    recorder.run("b")
    found = place(recorder)
    assert len({p.session for p in found[:4]}) == len({p.session for p in found[4:]}) == 1
    assert found[0].session != found[4].session
    assert [p.parent for p in found[:4]] == [None, 0, 1, 2]
    assert [p.number for p in found] == list(range(8)) and found[1].source == "call-id"
    assert found[0].confidence == 0.5 and found[1].edge == "continues" and found[0].thread


def test_the_truth_is_not_looked_at():
    recorder, blind = Recorder(), Recorder()
    recorder.run("a")
    blind.lines = [
        {**line, "truth": {"client": "x", "session": str(at)}} for at, line in enumerate(recorder.lines)
    ]
    assert [p.session for p in place(recorder)] == [p.session for p in place(blind)]


def test_ids_count_unless_they_are_hidden():
    recorder = Recorder()
    for task in ("one", "two"):
        recorder.exchange(
            "a", [{"role": "user", "content": f"Do {task} now, please"}], headers={"x-affinity": "a"}
        )
    assert len({p.session for p in place(recorder, without_ids=False)}) == 1
    assert len({p.session for p in place(recorder)}) == 2


def test_faults_happen_as_they_did():
    recorder = Recorder()
    hi = [{"role": "user", "content": "Hi there, and how are you?"}]
    said = {"role": "assistant", "content": "I am fine, thanks a lot."}
    faults: list[dict[str, Any]] = [
        {"status": 503},
        {"status": 0, "client_disconnected": True},
        {"response": said, "client_disconnected": True, "fault": {"s": 9}},
        {"response": said, "cut_after": 2},
        {"response": said, "cut_after": 3},
        {"response": said},
    ]
    for fault in faults:
        recorder.exchange("a", hi, **fault)
    found = place(recorder)
    assert [p.edge for p in found] == ["opens", *["retries"] * 5]


def test_responses_mint_state():
    recorder = Recorder()
    item = {"type": "message", "id": "msg_1", "content": [{"type": "output_text", "text": "Yes"}]}
    for previous, response in ((None, "resp_1"), ("resp_1", "resp_2")):
        body = {"input": "Hi", "previous_response_id": previous}
        recorder.exchange("a", [], [item], path="/v1/responses", body=body, response_id=response)
    assert [p.source for p in place(recorder)] == ["new", "state-id"]


def test_whoever_was_recorded_is_not_held():
    """Tools became slower while it was recorded: to a live gateway, their hosts would be full."""
    recorder = Recorder()
    for run in range(60):
        first = len(recorder.lines)
        recorder.run(f"run-{run}", steps=8)
        at = 1000.0 + 2 * run
        for line in recorder.lines[first:]:
            line["t"] = line["t_first_byte"] = at
            line["t_end"] = at + 0.5
            at = line["t_end"] + (0.5 if run < 20 else 10.0)
    lines = sorted(recorder.lines, key=lambda line: line["t"])
    found = replay(msgspec.convert(lines, list[Exchange]), without_ids=True)
    assert len(found) == 60 * 9 and len({each.acts_as for each in found}) == 60


@pytest.fixture
def exchanges() -> list[Exchange]:
    recorder = Recorder()
    for run in range(6):
        recorder.run(f"run-{run}", steps=4)
    for run in range(4):
        recorder.run(f"named-{run}", steps=3, headers={"x-turnpike-session": f"named-{run}"})
    lines = sorted(recorder.lines, key=lambda line: hash_of(line["truth"]["session"], line["t"]))
    for at, line in enumerate(lines):  # all at once, each run in its own order
        length = line["t_end"] - line["t"]
        line["t"] = line["t_first_byte"] = 1000.0 + at
        line["t_end"] = line["t"] + length
    return msgspec.convert(lines, list[Exchange])


def hash_of(session: str, at_s: float) -> tuple[float, str]:
    return at_s % 4, session


def places(found: list[Placed]) -> list[tuple[int, int | None, str, int]]:
    """Without the names of sessions, which are each gateway's own."""
    sessions: dict[str, int] = {}
    return [(p.number, p.parent, p.edge, sessions.setdefault(p.session, len(sessions))) for p in found]


@pytest.mark.parametrize("without_ids", [False, True])
def test_who_receives_an_exchange_makes_no_difference(exchanges, without_ids):
    one = replay(exchanges, without_ids=without_ids)
    with SharedReplays("memory://", count=3, without_ids=without_ids) as several:
        for _ in range(3):
            assert places(several(exchanges)) == places(one)


def test_where_all_are_busy_nothing_that_is_acted_upon_is_lost(exchanges):
    one = score(replay(exchanges, without_ids=True)).acted_upon
    with SharedReplays("memory://", count=3, without_ids=True, are_busy=True) as several:
        found = score(several(exchanges)).acted_upon
    assert (found.right, found.found) == (one.right, one.found)


def test_sessions_go_on_when_a_gateway_is_killed(exchanges):
    one = score(replay(exchanges, without_ids=True)).acted_upon
    with SharedReplays("memory://", count=3, without_ids=True, kills_one=True) as several:
        for _ in range(3):
            found = score(several(exchanges)).acted_upon
            assert found.right == found.found == one.right


SURE = {"replays", "early_replays", "twins", "forks"}
"""Here owners have ids that were drawn at random, or long answers of their own."""


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kind", KINDS)
def test_nobody_joins_a_stranger(kind, seed):
    placed = replay(stage_kind(kind, seed=seed), without_ids=True)
    seen: dict[str, str] = {}
    for turn in placed:
        owner = seen.setdefault(turn.acts_as, turn.exchange.truth.session)
        assert owner == turn.exchange.truth.session, f"turn {turn.number} acts as {owner}'s"
    if kind in SURE:
        assert score(placed).acted_upon.right > 0, "who can prove it is recognised"


def test_a_thief_takes_nothing_from_the_owner():
    placed = replay(stage_kind("early_replays"), without_ids=True)
    owned = {turn.acts_as for turn in placed if turn.exchange.truth.session == "owner"}
    assert len(owned) == 1
    assert len({turn.acts_as for turn in placed}) > 1


def counts(recorder: Recorder, at: Path) -> dict[str, int]:
    return dict(follow(read_recording(recorder.write(at / "recording.jsonl"))))


def test_each_answer_whose_calls_come_back_is_one(tmp_path: Path) -> None:
    recorder = Recorder()
    for session in ("a", "b"):
        recorder.run(session, steps=3)
    assert counts(recorder, tmp_path) == {"followed": 6, "right": 6, "sent": 6, "right_sent": 6}


def test_who_edits_history_is_not_foreseen_and_then_not_sent_to(tmp_path: Path) -> None:
    recorder = Recorder()
    recorder.run("a", steps=4)
    for number, line in enumerate(recorder.lines):
        line["body"]["messages"][0] = {"role": "user", "content": f"Please fix, it is step {number}."}
    assert counts(recorder, tmp_path) == {"followed": 4, "right": 0, "sent": 1, "right_sent": 0}


@pytest.fixture
def files(tmp_path):
    found = []
    for client, threads in (("one", (None,)), ("two", ("main", "sub"))):
        recorder = Recorder(client)
        for session in "abc":
            for thread in threads:
                recorder.run(
                    f"{client}-{session}",
                    thread=thread,
                    headers={"session-id": session, "thread-id": f"{session}{thread}"},
                )
        found.append(recorder.write(tmp_path / f"{client}.jsonl.xz"))
    return found


def test_one_json_object(files, capsys):
    assert main(["eval", "sessions", *map(str, files), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["pairwise_f1"] == report["link_precision"] == report["thread_f1"] == 1
    assert report["clients"] == 2 and report["turns"] == 36 and report["strip_ids"] is False
    assert report["per_client"]["one"]["thread_f1"] is None and report["retry_recall"] is None
    assert report["per_client"]["two"]["turns"] == 24 and "hidden" not in report


def test_without_ids_it_says_what_is_hidden(files, capsys):
    assert main(["eval", "sessions", *map(str, files), "--strip-ids"]) == 0
    text = capsys.readouterr().out
    assert "hidden headers: " in text and "thread-id" in text and "prompt_cache_key" in text
    assert "previous_response_id" not in text
    assert text.splitlines()[-1].startswith("all (macro)") and " - " in text
    report = evaluate_sessions(files, strip_ids=True)
    assert report["per_client"]["one"]["pairwise_f1"] == 1 and "thread-id" in report["hidden"]["headers"]
    assert report["pairwise_f1"] < 1, "nothing but the ids told two's sub-agents"


def test_what_cannot_be_read_is_an_error(tmp_path, capsys):
    assert main(["eval", "sessions", str(tmp_path / "missing.jsonl")]) == 1
    assert "missing.jsonl" in capsys.readouterr().err


def test_without_its_store_nothing_is_measured(files, capsys):
    store = "redis://127.0.0.1:1"
    assert main(["eval", "sessions", str(files[0]), "--gateways", "2", "--store", store]) == 1
    shown = capsys.readouterr()
    assert "the shared store does not answer" in shown.err and not shown.out
