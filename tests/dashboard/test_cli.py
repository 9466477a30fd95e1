"""`turnpike sessions` and `turnpike explain`."""

import argparse
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import msgspec
import pytest

from gateway.__main__ import main
from gateway.cli import sessions as cli
from gateway.cli.sessions import explain_from_file
from gateway.dashboard.explain import Explainer
from gateway.domain.ids import ReplicaId, RequestId
from tests.core.playbook import Playbook, arrived, call_seen, finished, started, stated
from tests.core.snapshots import take_snapshot
from tests.history.lives import whole


def play():
    play = Playbook(replicas="a b", max_running_per_replica=1)
    for name in ("r1", "r2"):
        play.arrives(name, explicit=stated(name))
    play >> started("r1") >> call_seen("r1", "c1") >> finished("r1", "c1")
    play.arrives("r3", explicit=stated("three"))
    play >> arrived("r4", explicit=stated("four"))
    return play


SNAPSHOT_SESSION = {
    "id": "s-1", "state": "tool", "since_s": 1.0, "class": "reactive", "replica": "a", "turns": 1,
    "schema": None, "client": "", "started_s": 0.0, "last_seen_s": 1.0, "is_active": True,
    "prompt_tokens": 1, "cached_tokens": 0, "source": "new", "confidence": 1.0,
}  # fmt: skip
SNAPSHOT = {"at_s": 2.0, "session_count": 1, "running": 0, "waiting": 0, "active_tools": 1}


posted: list[tuple[str, dict[str, object]]] = []


@pytest.fixture
def control():
    told = play()
    pages = {"/turnpike/snapshot": msgspec.json.encode(take_snapshot(told.brain, now=told.now + 2.0))}
    explainer = Explainer(RequestId("r4"), {ReplicaId("a"): 1, ReplicaId("b"): 1})
    explainer.read(told.records[::-1])
    pages["/turnpike/turns/r4"] = msgspec.json.encode(explainer.explanation())

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            is_known = self.headers["Authorization"] in (None, "Bearer good")
            body = pages.get(self.path, b'{"error": "nothing is known of this request"}')
            self.send_response(401 if not is_known else 200 if self.path in pages else 404)
            self.end_headers()
            self.wfile.write(body if is_known else b"no JSON")

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            posted.append((self.path, json.loads(body)))
            session = self.path.split("/")[3]
            is_known = session == "s-1"
            told = {"session": session, "stopped_for_s": 60.0} if is_known else {"error": "no such session"}
            self.send_response(200 if is_known else 404)
            self.end_headers()
            self.wfile.write(json.dumps(told).encode())

        def log_message(self, *_) -> None:
            pass

    posted.clear()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_a_session_is_stopped_or_finished(control, capsys):
    assert main(["sessions", "stop", "s-1", "--for", "60", "--control", control]) == 0
    assert main(["sessions", "stop", "s-1", "--let-finish", "--control", control, "--json"]) == 0
    assert main(["sessions", "finish", "s-1", "--control", control]) == 0
    assert posted == [
        ("/turnpike/sessions/s-1/stop", {"for_s": 60.0, "in_flight": "cancel"}),
        ("/turnpike/sessions/s-1/stop", {"for_s": 3600.0, "in_flight": "finish"}),
        ("/turnpike/sessions/s-1/finish", {}),
    ]
    first, second, third = capsys.readouterr().out.splitlines()
    assert first == "s-1 is stopped for 60 s" and third == "s-1 is over"
    assert json.loads(second)["session"] == "s-1"


def test_who_is_to_be_stopped_must_be_said_and_known(control, capsys):
    assert main(["sessions", "stop", "--control", control]) != 0
    assert "which session?" in capsys.readouterr().err
    assert main(["sessions", "stop", "../../x", "--control", control]) != 0
    assert posted == [("/turnpike/sessions/..%2F..%2Fx/stop", {"for_s": 3600.0, "in_flight": "cancel"})]
    assert "no such session" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["sessions", "pause", "s-1"])


def test_sessions_are_listed(control, capsys):
    assert main(["sessions", "--control", control]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[:4] == ["session", "client", "state", "for"]
    assert [line.split()[2] for line in lines[1:-1]] == ["waiting", "generating", "tool", "generating"]
    assert (
        "tool (bash)" in lines[3]
        and "2.0 s" in lines[3]
        and lines[-1].startswith("4 of 4 sessions shown; 4 active; 2 turns run")
    )
    assert main(["sessions", "--control", control, "--state", "tool", "--json"]) == 0
    assert [each["open_tools"] for each in json.loads(capsys.readouterr().out)] == [["bash"]]


def test_a_gateway_is_found_by_the_settings_in_the_folder(control, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TURNPIKE_CONTROL", raising=False)
    (tmp_path / "turnpike.toml").write_text(f'[server]\ncontrol = "{control.removeprefix("http://")}"\n')
    assert main(["sessions", "stop", "s-1"]) == 0
    (tmp_path / "turnpike.toml").write_text('[server]\ncontrol = "127.0.0.1:1"\n')
    assert main(["sessions"]) == 1
    assert capsys.readouterr().err.endswith(": Connection refused; --control URL names another gateway\n")


OUTCOME = {
    "sessions": 30, "in_time": 20, "judged": 25, "turns_in_time": 90, "turns_judged": 100,
    "cached_tokens": 12345,
}  # fmt: skip


def test_what_came_of_it_is_told(control, capsys, monkeypatch):
    now: dict[str, Any] = {**SNAPSHOT, "sessions": [], "outcome": OUTCOME}
    monkeypatch.setattr(cli, "call_control", lambda *_: now)
    assert main(["sessions", "--control", control]) == 0
    assert capsys.readouterr().out.splitlines()[2:] == [
        "30 sessions ended, 20 of 25 judged in time",
        "90 of 100 turns met the target (`objective.slowdown_target` × alone)",
        "12345 prompt tokens were cached, and not computed again",
    ]
    now["outcome"] = {**OUTCOME, "judged": 2, "turns_in_time": 0, "turns_judged": 1, "cached_tokens": 0}
    assert main(["sessions", "--control", control]) == 0
    assert capsys.readouterr().out.splitlines()[2:] == [
        "30 sessions ended, too few to judge",
        "turns in time: not enough data (1 judged, 20 needed)",
    ]
    now["outcome"] = dict.fromkeys(OUTCOME, 0)
    assert main(["sessions", "--control", control]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2


def test_names_do_nothing_in_a_terminal(control, capsys, monkeypatch):
    hostile = "bash\x1b]0;owned\x07\nforged"
    now = {**SNAPSHOT, "sessions": [{**SNAPSHOT_SESSION, "open_tools": [hostile], "tenant": hostile}]}
    monkeypatch.setattr(cli, "call_control", lambda *_: now)
    assert main(["sessions", "--control", control]) == 0
    out = capsys.readouterr().out
    assert len(out.splitlines()) == 3 and all(line.isprintable() for line in out.splitlines())
    assert "bash\\u001b]0;owned\\u0007\\u000aforged" in out


def test_an_explanation_does_nothing_in_a_terminal(control, capsys, monkeypatch):
    told = cli.call_control(argparse.Namespace(control=control, key_env=None), "/turnpike/turns/r4")
    told["known"]["model"] = "m\x1b[2J\nwhy      forged"
    monkeypatch.setattr(cli, "call_control", lambda *_: told)
    assert main(["explain", "r4", "--control", control]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert all(line.isprintable() for line in lines) and "why      forged" not in lines


def test_a_request_is_explained(control, capsys):
    assert main(["explain", "r4", "--control", control]) == 0
    text = capsys.readouterr().out
    assert "decided  waiting" in text and "(`concurrency_full`) (nobody else queued)" in text
    assert main(["explain", "r4", "--control", control, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["turn"] == "r4"


def test_what_went_wrong_is_said(control, capsys, monkeypatch):
    assert main(["explain", "r99", "--control", control]) == 1
    assert "404: nothing is known" in capsys.readouterr().err
    monkeypatch.setenv("KEY", "bad")
    assert main(["sessions", "--control", control, "--key-env", "KEY"]) == 1
    assert "401" in capsys.readouterr().err
    monkeypatch.setenv("KEY", "good")
    assert main(["sessions", "--control", control, "--key-env", "KEY"]) == 0
    for wrong, why in (
        (["--key-env", "NOT_THERE"], "NOT_THERE is not set"),
        (["--control", "file:///etc/passwd"], "is a URL, not"),
        (["--control", "localhost:8081"], "write http://localhost:8081"),
        (["--control", "http://127.0.0.1:9"], "refused"),
    ):
        assert main(["sessions", *wrong]) == 1
        assert why in capsys.readouterr().err


def test_every_request_of_a_file_is_explained(tmp_path, capsys):
    told = play()
    path = tmp_path / "stream.jsonl"
    lines = [msgspec.json.encode(record) for record in told.records]
    older, newer = lines[: len(lines) // 2], [*lines[len(lines) // 2 :], b'{"type":"newer"}', b'{"cut o']
    path.with_name("stream.jsonl.1").write_bytes(b"\n".join(older) + b"\n")
    path.write_bytes(b"\n".join(newer))
    for name in ("r1", "r2", "r3", "r4"):
        found = explain_from_file(path, RequestId(name))
        assert found is not None and found.known is not None and found.known.turn == name and found.why
        assert main(["explain", name, "--stream", str(path)]) == 0
    text = capsys.readouterr().out
    assert "instead  " in text and "became   finished" in text
    assert main(["explain", "r9", "--stream", str(path)]) == 1


async def test_a_trace_of_a_session_and_of_those_that_run_for_it(tmp_path, capsys, monkeypatch):
    """Its older turns come in pages; what is written is JSON that names every turn once."""
    lives = {
        "s/1": [("r1", whole("r1", "s/1", 1.0)), ("r2", whole("r2", "s/1", 5.0))],
        "child": [("r3", whole("r3", "child", 2.0))],
    }
    kin = [{"session": "child", "parent": "s/1"}, {"session": "other", "parent": "child"}]

    def ask(_, path):
        name, _, query = path.removeprefix("/turnpike/sessions/").partition("?before_s=")
        session = name.replace("%2F", "/")
        turns = [each for each in lives[session] if not query or each[1][0].at_s < float(query)][-1:]
        told = [
            {"turn": turn, "records": json.loads(msgspec.json.encode(records))} for turn, records in turns
        ]
        is_cut = bool(turns) and turns[0] != lives[session][0]
        return {"session": {"session": session}, "kin": kin, "turns": told, "is_cut": is_cut}

    monkeypatch.setattr(cli, "call_control", ask)
    monkeypatch.chdir(tmp_path)
    assert main(["trace", "s/1"]) == 0
    events = json.loads((tmp_path / "s_1.perfetto-trace").read_text())["traceEvents"]
    assert sorted(each["name"] for each in events if each["ph"] == "X" and each["name"].startswith("r")) == [
        "r1",
        "r2",
        "r3",
    ]
    assert "2 sessions" in capsys.readouterr().out
    assert main(["trace", "s/1", "-o", "-"]) == 0
    assert json.loads(capsys.readouterr().out)["traceEvents"] == events
