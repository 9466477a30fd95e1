"""Starting and ending an engine, with a stand-in for vLLM that starts at once."""

import json
import sys
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path

import pytest

from scripted_engine.process import EngineOptions, EngineStartError, ScriptedEngine, scripted_fleet
from tests.scripted_engine.test_guardian import lives

SCRIPTS = {"scripts": {"hi": {"turns": [{"text": "Hello."}]}}}
HEALTHY = """
import http.server, os, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import signal, time; {deafness} time.sleep(60)"])
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == "/health" else 404)
        self.end_headers()
        self.wfile.write(f"{{child.pid}} {{os.environ['TURNPIKE_SCRIPT']}}".encode())
http.server.HTTPServer(("127.0.0.1", {port}), Handler).serve_forever()
"""


@dataclass(frozen=True, kw_only=True)
class StandIn(EngineOptions):
    program: str = HEALTHY
    deafness: str = ""

    def command(self, model: Path, port: int) -> list[str]:
        return [sys.executable, "-c", self.program.format(port=port, deafness=self.deafness)]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return tmp_path / "model"


def child_and_script(engine: ScriptedEngine) -> tuple[int, Path]:
    with urllib.request.urlopen(f"{engine.url}/health") as answer:
        child, path = answer.read().decode().split(" ", 1)
    return int(child), Path(path)


def test_an_engine_plays_scripts_and_leaves_nothing(model: Path) -> None:
    with ScriptedEngine(SCRIPTS, StandIn(model=model)) as engine:
        child, path = child_and_script(engine)
        assert json.loads(path.read_text()) == SCRIPTS
        engine.play({"default": None})
        assert json.loads(path.read_text()) == {"default": None}
        assert lives(child)
    assert not lives(child)
    assert not path.parent.exists()
    engine.stop()


@pytest.mark.slow
def test_a_deaf_process_is_ended_all_the_same(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scripted_engine.process._STOP_S", 0.5)
    deaf = StandIn(model=model, deafness="signal.signal(signal.SIGTERM, signal.SIG_IGN);")
    with ScriptedEngine(SCRIPTS, deaf) as engine:
        child, _ = child_and_script(engine)
        time.sleep(0.3)  # let it go deaf
    assert not lives(child)


def test_an_engine_that_ends_is_an_error_with_its_log(model: Path) -> None:
    failing = StandIn(model=model, program="raise SystemExit('no such {port}'.replace(' ', '-')) #{deafness}")
    engine = ScriptedEngine(SCRIPTS, failing)
    with pytest.raises(EngineStartError, match=r"the engine ended; its log ends:\nno-such-"), engine:
        pass


def test_an_engine_that_hangs_is_an_error(model: Path) -> None:
    engine = ScriptedEngine(SCRIPTS, StandIn(model=model, program="import time; time.sleep(60) #{port}"))
    engine.launch()
    pid = engine._process.pid if engine._process else 0
    with pytest.raises(EngineStartError, match="not healthy within 0 s"):
        engine.wait_healthy(deadline_s=0.3)
    assert not lives(pid)


def test_if_one_of_a_fleet_fails_all_end(model: Path) -> None:
    failing = StandIn(model=model, program="raise SystemExit(1) #{port}")
    engines = [StandIn(model=model), failing]
    with pytest.raises(EngineStartError), scripted_fleet(SCRIPTS, engines):
        pass
