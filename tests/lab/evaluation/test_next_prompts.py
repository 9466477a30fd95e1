"""How often the next prompt is foreseen: counted over recordings."""

from pathlib import Path

from lab.evaluation.next_prompts import follow
from lab.evaluation.recording import read_recording
from tests.lab.evaluation.recordings import Recorder


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
