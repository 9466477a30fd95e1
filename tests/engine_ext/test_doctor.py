"""What the doctor says of an installation and of a server."""

import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from types import SimpleNamespace
from typing import Any

import pytest

from turnpike_vllm import __main__
from turnpike_vllm.api import doctor
from turnpike_vllm.detection import CHUNK_SEAM, SEAMS


@pytest.fixture(autouse=True)
def seams(monkeypatch: pytest.MonkeyPatch) -> None:
    scheduler = SimpleNamespace(TurnpikeScheduler=SimpleNamespace(**dict.fromkeys(SEAMS)))
    monkeypatch.setitem(sys.modules, "turnpike_vllm.scheduler", scheduler)


def test_a_sound_installation(capsys: pytest.CaptureFixture[str]) -> None:
    assert __main__.main(["doctor"], {"VLLM_PLUGINS": "a,turnpike"}) == 0
    assert "BAD" not in capsys.readouterr().out


def test_a_seam_that_this_vllm_lacks(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    newer = SimpleNamespace(**dict.fromkeys(SEAMS[1:]))
    monkeypatch.setitem(sys.modules, "turnpike_vllm.scheduler", SimpleNamespace(TurnpikeScheduler=newer))
    assert __main__.main(["doctor"], {"VLLM_PLUGINS": "turnpike"}) == 1
    assert [line for line in capsys.readouterr().out.splitlines() if "BAD" in line] == [
        f"BAD  seam {SEAMS[0]}"
    ]


def test_a_vllm_before_the_chunk_seam_is_sound(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    older = SimpleNamespace(**dict.fromkeys(name for name in SEAMS if name != CHUNK_SEAM))
    monkeypatch.setitem(sys.modules, "turnpike_vllm.scheduler", SimpleNamespace(TurnpikeScheduler=older))
    assert __main__.main(["doctor"], {"VLLM_PLUGINS": "turnpike"}) == 0
    assert [line for line in capsys.readouterr().out.splitlines() if not line.startswith("ok")] == [
        f"off  classes, headroom: this vLLM has no {CHUNK_SEAM}"
    ]


def test_what_is_missing_and_what_to_do(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "turnpike_vllm.scheduler", None)
    monkeypatch.setattr(doctor, "_version", lambda name: None)
    assert __main__.main(["doctor"], {}) == 1
    said = capsys.readouterr().out
    assert "vLLM is not installed" in said and "VLLM_PLUGINS is None" in said
    assert "--scheduler-cls turnpike_vllm.scheduler.TurnpikeScheduler" in said


@pytest.mark.parametrize(
    ("told", "fine"),
    [
        ({"state": "awake", "features": {"retention": "on"}, "blocks": {"free": 3}}, True),
        ({"state": "asleep", "features": {"retention": "prefix caching is off"}}, True),
        ({"state": "inert", "features": {"retention": "given up: KeyError"}}, False),
        ({"state": "awake", "ranks": [{"state": "awake"}, {"state": "inert"}]}, False),
        ({"state": "absent", "why": "no scheduler"}, False),
        ({"state": "awake", "features": None}, False),
        ({"state": "awake", "ranks": [{}]}, False),
    ],
)
def test_a_server(told: dict[str, Any], fine: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_get", lambda url, key: told)
    found = list(doctor._server("http://engine:8000/"))
    assert all(each.is_fine for each in found) is fine


def test_what_is_off_in_this_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    features = {
        "coordinator": "on",
        "retention": "a KV connector: not tried",
        "classes": "switched off",
    }
    told = {
        "state": "awake",
        "features": features,
        "acted": {"coordinator": 12},
        "saved_s": {"coordinator": 3.44},
        "failures": 1,
    }
    monkeypatch.setattr(doctor, "_get", lambda url, key: told)
    said = [str(each) for each in doctor._server("http://engine:8000/")]
    assert said[1:] == [
        "ok   coordinator: on, acted 12 times, saved about 3.4 s of prefill",
        "off  retention: a KV connector: not tried",
        "ok   classes: switched off",
        "BAD  failed 1 times since the server started: see its log",
    ]


@pytest.mark.parametrize(
    ("flags", "environment"),
    [(["--api-key", "k"], {"VLLM_API_KEY": "other"}), ([], {"VLLM_API_KEY": "k"})],
)
def test_the_server_gets_its_key(
    flags: list[str], environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str | None] = []

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.headers["Authorization"])
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b'{"state": "awake"}')

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Answers) as server:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        url = f"http://127.0.0.1:{server.server_port}"
        __main__.main(["doctor", "--url", url, *flags], {"VLLM_PLUGINS": "turnpike", **environment})
        thread.join()
    assert asked == ["Bearer k"]


@pytest.mark.parametrize("url", ["ftp://x", "http://127.0.0.1:1"])
def test_a_server_that_is_not_there(url: str) -> None:
    assert [each.is_fine for each in doctor._server(url)] == [False]
