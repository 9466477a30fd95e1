"""The soak's judgement: what is lost, ends twice or grows is found."""

import json
import random
from collections import Counter
from pathlib import Path

import pytest

from benchmarks.dialects import DIALECTS
from benchmarks.soak import __main__ as soak
from benchmarks.soak import agents, engine
from benchmarks.verdict import Verdict


def left(folder: Path, records: list[dict], reports: list[dict]) -> soak.Left:
    for name, lines in (("stream", records), ("report", reports)):
        (folder / name).write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "log").write_text("")
    return soak.Left(folder)


def turn(name: str, outcome: str = "finished") -> list[dict]:
    return [
        {"type": "turn_arrive", "turn": name},
        {"type": "gpu_submit", "turn": name},
        {"type": "gpu_end", "turn": name, "outcome": outcome},
    ]


@pytest.mark.parametrize(
    ("records", "missed"),
    [
        (turn("a") + turn("b"), []),
        (turn("a"), ["requests_that_clients_miss"]),
        (turn("a") + turn("b") + turn("c"), ["requests_that_nobody_sent"]),
        (turn("a") + turn("b")[:2], ["requests_without_one_end", "attempts_without_one_end"]),
        (turn("a") + turn("b", "failed"), ["requests_without_one_end"]),
        (turn("a") + turn("b") + turn("b")[2:], ["requests_without_one_end", "attempts_without_one_end"]),
        (turn("a") + turn("b") + [{"type": "refusal", "turn": "x"}], ["ends_of_nothing"]),
    ],
)
def test_accounts(tmp_path, records, missed):
    verdict = Verdict()
    counts = Counter({agents.ANSWERED: 1, agents.CUT: 1})
    soak.judge_accounts(left(tmp_path, records, []), counts, verdict, print)
    assert verdict.missed == missed


def reports(**last: object) -> list[dict]:
    usual = {"rss_mib": 50.0, "descriptors": 20, "tasks": 10, "late_ms": [0.1] * 99, "callback_ms": 5.0}
    each = [{"at_s": float(at), **usual} for at in range(90)]
    each += [{"at_s": float(at), "sizes": {"Books.live": 100}} for at in (12, 15)]
    changed = {name: value for name, value in last.items() if name != "sizes"}
    each += [{"at_s": float(at), **(usual | changed)} for at in range(90, 100) for _ in range(3)]
    return [*each, {"at_s": 95.0, "sizes": last.get("sizes", {"Books.live": 110})}]


@pytest.mark.parametrize(
    ("last", "missed"),
    [
        ({}, []),
        ({"sizes": {"Books.live": 400}}, ["containers_that_grew"]),
        ({"sizes": {"Books.live": 100, "Books.log": 300}}, ["containers_that_grew"]),
        ({"rss_mib": 60.0}, ["rss_mib_last_to_second_tenth"]),
        ({"descriptors": 60}, ["more_descriptors_in_the_last_tenth"]),
        ({"tasks": 14}, ["more_tasks_in_the_last_tenth"]),
        ({"late_ms": [30.0] * 99}, ["loop_late_p99_ms"]),
        ({"callback_ms": 101.0}, ["callback_longest_ms"]),
    ],
)
def test_flatness(tmp_path, last, missed):
    verdict = Verdict()
    soak.judge_flatness(left(tmp_path, [], reports(**last)), -1.0, 100.0, verdict, print)
    assert verdict.missed == missed


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda each: each.name)
@pytest.mark.parametrize("is_stream", [True, False])
def test_agents_quote_what_the_engine_answers_and_bring_results(dialect, is_stream):
    for seed in range(20):
        items = dialect.opening("You are an agent.", "A task.")
        body = agents.body_of(dialect, "You are odd.", items, ["grep", "bash"], is_stream=is_stream)
        answer = engine.Answer(dialect.path.decode(), body, random.Random(seed), seed)
        said = b"".join(answer.events()) if is_stream else json.dumps(answer.whole()).encode()
        echoed = json.dumps(agents.echo(dialect, said, is_stream=is_stream))
        for call, name, _ in answer.calls:
            assert echoed.count(call) == 2 and name in echoed, "the call and its result"
        assert ("Go on." in echoed) == (not answer.calls)
        assert json.dumps("".join(answer.pieces))[1:-1] in echoed
