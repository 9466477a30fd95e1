import json

import pytest

from gateway.__main__ import main
from lab.evaluation.cli import evaluate_sessions
from tests.lab.evaluation.recordings import Recorder


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
