from typing import Any

import msgspec

from lab.evaluation.recording import Exchange
from lab.evaluation.replay import Placed, replay
from tests.lab.evaluation.recordings import Recorder


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
        {"response": said},
    ]
    for fault in faults:
        recorder.exchange("a", hi, **fault)
    found = place(recorder)
    assert [p.edge for p in found] == ["opens", "retries", "retries", "retries", "retries"]


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
