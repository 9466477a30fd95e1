from typing import Any

import msgspec

from lab.evaluation.metrics import Score, score
from lab.evaluation.recording import Exchange
from lab.evaluation.replay import Placed, replay
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
