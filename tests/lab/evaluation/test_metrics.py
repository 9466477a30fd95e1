"""What is counted of sessions and said of workflows, against recordings whose truth is plain."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gateway.__main__ import main
from gateway.domain.records import Record, ToolEnd, ToolStart
from lab.evaluation.boundaries import Ended, score_boundaries, true_ends
from lab.evaluation.metrics import Score, score
from lab.evaluation.recording import Exchange, Truth
from lab.evaluation.replay import Placed, Replay, replay
from lab.evaluation.workflow import evaluate_exchanges
from tests.given_ids import given
from tests.lab.evaluation.recordings import Recorder


def exchanges(recorder: Recorder) -> list[Exchange]:
    return msgspec.convert(recorder.lines, list[Exchange])


def placed(recorder: Recorder, sessions: str, threads: str = "", **fields) -> list[Placed]:
    """What an inference would have said, one letter a turn."""
    return [
        Placed(
            number=at,
            exchange=exchange,
            session=sessions[at],
            thread=(threads or sessions)[at],
            edge=fields.get("edges", {}).get(at, "continues"),
            source="",
            confidence=1.0,
            parent=fields.get("parents", {}).get(at),
            acts_as=sessions[at],
        )
        for at, exchange in enumerate(exchanges(recorder))
    ]


def test_pairs_of_turns():
    recorder = Recorder()
    recorder.run("a", steps=2)  # three turns
    recorder.run("b", steps=1)  # two
    assert score(placed(recorder, "xxxyy")).sessions == Score(right=4, found=4, true=4)
    assert score(placed(recorder, "xxxxx")).sessions == Score(right=4, found=10, true=4)
    assert score(placed(recorder, "xzxyy")).sessions == Score(right=2, found=2, true=4)


def test_a_hash_of_the_beginning_joins_whoever_begins_alike():
    recorder = Recorder()
    recorder.run("a", steps=2)
    recorder.run("b", steps=1)
    apart = score(placed(recorder, "xxxyy")).by_prefix_hash
    recorder.lines = [{**line, "body": {**line["body"], "messages": alike(line)}} for line in recorder.lines]
    together = score(placed(recorder, "xxxyy")).by_prefix_hash
    assert (apart, together) == (Score(right=4, found=4, true=4), Score(right=4, found=10, true=4))


def alike(line: dict[str, Any]) -> list[Any]:
    first, *others = line["body"]["messages"]
    return [{**first, "content": "the same"}, *others]


def test_threads_count_where_a_client_names_them():
    recorder = Recorder()
    recorder.run("a", steps=1, thread="main")
    recorder.run("a", steps=1, thread="sub")
    recorder.run("b", steps=1)
    good = score(placed(recorder, "xxxxyy", "mmssyy"))
    assert good.threads == Score(right=2, found=2, true=2)
    assert score(placed(recorder, "xxxxyy", "mmmmyy")).threads == Score(right=2, found=6, true=2)


def test_a_parent_is_the_longest_conversation_before():
    recorder = Recorder()
    recorder.run("a", steps=3)
    right = placed(recorder, "xxxx", parents={1: 0, 2: 1, 3: 2})
    assert score(right).links == Score(right=3, found=3, true=3)
    wrong = placed(recorder, "xxxx", parents={1: 0, 2: 0})
    assert score(wrong).links == Score(right=1, found=2, true=3)


def test_twins_are_told_apart_by_the_ids_behind_them():
    recorder = Recorder()
    opening = [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}]
    calls = [{"id": f"call_{at}", "function": {"name": "f"}} for at in range(2)]
    for call in calls:
        recorder.exchange("a", opening, {"content": None, "tool_calls": [call]})
    history: list[Any] = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": None, "tool_calls": [calls[0]]},
        {"role": "tool", "tool_call_id": "call_0", "content": "ok"},
    ]
    recorder.exchange("a", [{"role": "system", "content": "New."}, *history])
    assert score(placed(recorder, "xxx", parents={2: 0})).links == Score(right=1, found=1, true=1)


def test_retries_follow_broken_attempts_of_the_same_bytes():
    recorder = Recorder()
    hi = [{"role": "user", "content": "Hi"}]
    said = {"role": "assistant", "content": "Yes"}
    recorder.exchange("a", hi, status=503)
    recorder.exchange("a", hi, said, body={"stream": True})
    recorder.exchange("a", hi, said)
    found = score(placed(recorder, "xxx", edges={1: "retries"}))
    assert found.retries == Score(right=1, found=1, true=1)
    assert score(placed(recorder, "xxx", edges={2: "retries"})).retries == Score(right=0, found=1, true=1)


def test_twins_of_sessions_at_work_are_ambiguous():
    recorder = Recorder()
    hi = [{"role": "user", "content": "Hi"}]
    for session in ("a", "b"):
        recorder.exchange(session, hi, {"content": "Yes"}, lasts=9)
    recorder.now += 60
    recorder.exchange("c", hi)
    assert score(placed(recorder, "xyz")).ambiguous == 1


def test_a_real_replay_is_right():
    recorder = Recorder()
    for session in "abc":
        recorder.run(session)
    found = score(replay(exchanges(recorder), without_ids=True))
    assert found.sessions.f1 == found.links.f1 == found.retries.f1 == 1 and found.turns == 12


PLAN = ("read", "edit", "test", "")


def exchange(name: str, now: float, messages: list[Any], answer: dict[str, Any], **more: Any) -> Exchange:
    return Exchange(
        t=now,
        t_end=now + 1.0,
        method="POST",
        path="/v1/chat/completions",
        body={"model": "m", "messages": list(messages), **more},
        response=answer,
        finish="tool_calls" if "tool_calls" in answer else "stop",
        truth=Truth(client="test", session=name),
    )


def recorded(sessions: int, plan: tuple[str, ...] = PLAN, *, tool_s: float = 2.0) -> list[Exchange]:
    """Sessions one after the other, each of which follows the plan."""
    found, now = [], 0.0
    for number in range(sessions):
        name = f"s{number}"
        messages: list[Any] = [{"role": "user", "content": f"Please do the task {name} now, will you?"}]
        for step, tool in enumerate(plan):
            answer: dict[str, Any] = {"role": "assistant", "content": f"Step {step} of {name}."}
            if tool:
                call = {"id": given(f"{name}.{step}"), "type": "function"}
                answer["tool_calls"] = [{**call, "function": {"name": tool, "arguments": "{}"}}]
            offered = [tool_named(each) for each in PLAN[:3]]
            found.append(exchange(name, now, messages, answer, tools=offered))
            messages += [answer]
            if tool:
                messages += [{"role": "tool", "tool_call_id": given(f"{name}.{step}"), "content": "ok"}]
            now += 1.0 + tool_s
        now += 60.0
    return found


def tool_named(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": {}}}


def test_a_plan_is_predicted_at_full_marks():
    report: Any = evaluate_exchanges(recorded(60))
    assert (
        report.next_accuracy == report.held == report.released_right == 1.0 and report.released == report.ends
    )
    assert report.end_accuracy == report.end_precision == report.end_recall == 1.0
    assert report.boundary_precision == report.boundary_recall == 1.0 and report.boundaries == 180
    assert report.duration_error_ms_p99 == pytest.approx(0.0, abs=0.01)
    assert report.end_loss < 0.1 < report.end_loss_base and report.end_ece < 0.1
    assert report.agent_types == 1
    assert report.majority == pytest.approx(1 / 3)


def in_text(name: str, steps: int, at_s: float) -> list[Exchange]:
    """A session of an agent without native calls, whose program runs its code blocks."""
    found, now = [], at_s
    messages: list[Any] = [{"role": "user", "content": f"Please do the task {name} now, will you?"}]
    for step in range(steps):
        answer = {
            "role": "assistant",
            "content": f"Step {step} of {name}: I look at everything that is there.\n```bash\nls {step}\n```",
        }
        found.append(exchange(name, now, messages, answer))
        output = f"<returncode>0</returncode> {name} listed what is in {step}: and that was all"
        messages += [answer, {"role": "user", "content": output}]
        now += 4.0
    return found


def test_code_blocks_that_turn_out_to_be_calls_are_told_late(monkeypatch: pytest.MonkeyPatch):
    exchanges = sorted(in_text("one", 6, 0.0) + in_text("two", 3, 0.5), key=lambda each: each.t)
    report: Any = evaluate_exchanges(exchanges)
    assert report.boundaries == 7 and report.boundary_precision == report.boundary_recall == 1.0
    assert report.duration_error_ms_p99 == pytest.approx(0.0, abs=0.01)
    told: list[Record] = []
    replay = Replay(exchanges, without_ids=False, on_record=told.append)
    ran: list[Any] = []
    monkeypatch.setattr(replay.brain.admission, "tools_ran", lambda *what: ran.append(what))
    replay.run()
    starts, ends = ([each for each in told if isinstance(each, kind)] for kind in (ToolStart, ToolEnd))
    assert len(ran) == len(ends) - 2  # how many ran beside the late ones is not known
    assert [each.late_s for each in ends if each.late_s] == pytest.approx([4.0, 3.5])
    assert {each.turn: each.at_s - each.late_s for each in starts if each.late_s} == pytest.approx(
        {"0": 1.0, "1": 1.5, "2": 5.0, "3": 5.5}
    )


def test_nothing_recorded_is_nothing_measured():
    report: Any = evaluate_exchanges([])
    assert report.next_accuracy is None and report.boundary_recall is None and report.end_ece is None


def test_boundaries_count_when_all_of_them_fit():
    true = true_ends(recorded(1))
    assert [(each.number, each.names, each.duration_s) for each in true] == [
        (1, ("read",), 2.0),
        (2, ("edit",), 2.0),
        (3, ("test",), 2.0),
    ]
    found = [true[0], Ended(2, ("other",), 2.0), Ended(9, ("test",), 2.0)]
    scores = score_boundaries(true, found)
    assert (scores.ends.right, scores.ends.found, scores.ends.true) == (1, 3, 3)


def test_the_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = tmp_path / "plan.jsonl"
    path.write_bytes(b"\n".join(msgspec.json.encode(each) for each in recorded(8)))
    assert main(["eval", "workflow", str(path), str(path), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["all"]["files"] == 2 and set(report["per_client"]) == {"test", "test'"}
    assert main(["eval", "workflow", str(path)]) == 0
    assert "tool P" in capsys.readouterr().out
    assert main(["eval", "graph", str(path)]) == 0
    table = capsys.readouterr().out
    assert "edit" in table and "1.00" in table
    assert main(["eval", "graph", str(path), "--type", "5"]) == 1
