"""Starting and ending an engine, with a stand-in for vLLM that starts at once."""

import json
import os
import subprocess
import sys
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path

import pytest

from scripted_engine import __main__ as command
from scripted_engine.process import EngineOptions, EngineStartError, ScriptedEngine, scripted_fleet
from scripted_engine.script import ScriptError

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


def lives(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


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


def test_a_script_file_is_used_where_it_lies(model: Path, tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(SCRIPTS))
    with ScriptedEngine(path, StandIn(model=model)) as engine:
        assert child_and_script(engine)[1] == path
    assert path.exists()


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


def test_a_wrong_script_starts_nothing(model: Path, tmp_path: Path) -> None:
    wrongs: list[dict[str, list[str]] | Path] = [{"turns": []}, tmp_path / "nothing.json"]
    for wrong in wrongs:
        engine = ScriptedEngine(wrong, StandIn(model=model))
        with pytest.raises(ScriptError):
            engine.launch()
        assert engine._process is None


def test_a_wrong_script_does_not_replace_a_good_one(model: Path) -> None:
    with ScriptedEngine(SCRIPTS, StandIn(model=model)) as engine:
        with pytest.raises(ScriptError):
            engine.play({"scripts": 1})
        assert json.loads(child_and_script(engine)[1].read_text()) == SCRIPTS


def test_a_running_engine_is_not_started_twice(model: Path) -> None:
    with (
        ScriptedEngine(SCRIPTS, StandIn(model=model)) as engine,
        pytest.raises(RuntimeError, match="already"),
    ):
        engine.launch()


def test_a_fleet_starts_and_ends_together(model: Path) -> None:
    with scripted_fleet(SCRIPTS, [StandIn(model=model), StandIn(model=model)]) as engines:
        children = [child_and_script(engine)[0] for engine in engines]
        assert len({engine.port for engine in engines}) == 2
    assert not any(map(lives, children))


def test_if_one_of_a_fleet_fails_all_end(model: Path) -> None:
    failing = StandIn(model=model, program="raise SystemExit(1) #{port}")
    engines = [StandIn(model=model), failing]
    with pytest.raises(EngineStartError), scripted_fleet(SCRIPTS, engines):
        pass


def test_the_command_line_and_environment_of_an_engine(model: Path) -> None:
    options = EngineOptions(served_model_names=("a", "b"), api_key="k", extra_args=("--max-num-seqs", "4"))
    line = " ".join(options.command(model, 8001))
    assert "--served-model-name a b" in line
    assert "--api-key k" in line
    assert line.endswith("--max-num-seqs 4")
    environment = EngineOptions(extra_env={"OMP_NUM_THREADS": "2"}).environment(Path("/x.json"))
    assert environment["TURNPIKE_SCRIPT"] == "/x.json"
    assert environment["HF_HUB_OFFLINE"] == "1"
    assert environment["OMP_NUM_THREADS"] == "2"
    assert environment["PATH"] == os.environ["PATH"]


def test_an_engine_finds_its_processor_wherever_it_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHONPATH", raising=False)
    environment = EngineOptions().environment(Path("/x.json"))
    said = subprocess.run(
        [sys.executable, "-c", "import scripted_engine; print(scripted_engine.__file__)"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert Path(said).parent == Path(command.__file__).parent
    monkeypatch.setenv("PYTHONPATH", "/mine")
    path = EngineOptions().environment(Path("/x.json"))["PYTHONPATH"]
    assert path == f"{environment['PYTHONPATH']}{os.pathsep}/mine"


def test_an_engines_sockets_and_temporary_files_go_with_it(model: Path) -> None:
    environment = EngineOptions(model=model).environment(Path("/x.json"), Path("/gone"))
    assert environment["TMPDIR"] == environment["VLLM_RPC_BASE_PATH"] == "/gone"
    assert EngineOptions(model=model).environment(Path("/x.json")).get("VLLM_RPC_BASE_PATH") != "/gone"


def test_the_foreground_command_becomes_the_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "s.json"
    path.write_text(json.dumps(SCRIPTS))
    calls: list[tuple[str, list[str], dict[str, str]]] = []
    monkeypatch.setattr(os, "execve", lambda *call: calls.append(call))
    arguments = ["--script", str(path), "--model-dir", str(tmp_path), "--served-model-name", "a", "b"]
    command.main([*arguments, "--port", "9", "--max-num-seqs", "4"])
    (program, line, environment) = calls[0]
    assert program == sys.executable
    assert " ".join(line).endswith("--max-num-seqs 4")
    assert "--port 9" in " ".join(line)
    assert "--served-model-name a b" in " ".join(line)
    assert environment["TURNPIKE_SCRIPT"] == str(path)


def test_the_foreground_command_refuses_a_wrong_script(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main(["--script", str(tmp_path / "nothing.json")]) == 2
    assert "nothing.json" in capsys.readouterr().err
