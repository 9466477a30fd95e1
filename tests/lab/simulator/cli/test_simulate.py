"""`turnpike simulate`, as a person runs it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gateway.__main__ import main
from lab.workload.trace.files import write_workload
from lab.workload.trace.format import Header
from tests.lab.simulator.worlds import IMPORTS_VLLM
from tests.lab.workload.trace.made import session as chat
from tests.project.layout import ROOT

CLOCK = ROOT / "tests/lab/simulator/baselines/clock.toml"
_SLOW = [pytest.mark.engine, *IMPORTS_VLLM]


@pytest.fixture
def world(tmp_path: Path) -> list[str]:
    sessions = [chat(f"s{n}", 64, 128, 200, arrival_s=7.0 * n, output=3, tool_s=4.0) for n in range(12)]
    write_workload(str(tmp_path / "w.jsonl"), Header(name="small"), sessions)
    profile = tmp_path / "little.toml"
    profile.write_text(CLOCK.read_text().replace("chunk_tokens = 64", "chunk_tokens = 256"))
    fleet = f'noise = 0.2\n[[replicas]]\nprofile = "{profile}"\ncount = 2\n'
    (tmp_path / "fleet.toml").write_text(fleet)
    return ["simulate", "--workload", str(tmp_path / "w.jsonl"), "--fleet", str(tmp_path / "fleet.toml")]


ASKED = "--policy affinity,session-cap:n=1/2,plas --load 900 --seeds 2 --sessions 6".split()


def _in_a_process(arguments: list[str], hash_seed: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "gateway", *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )


class TestRuns:
    pytestmark = _SLOW

    def test_the_same_seeds_give_the_same_bytes_however_many_processes(self, world, tmp_path, capsys):
        page = tmp_path / "r.html"
        assert main([*world, *ASKED, "--json", "--jobs", "1", "--report", str(page)]) == 0
        one = capsys.readouterr()
        two = _in_a_process([*world, *ASKED, "--json", "--jobs", "2"], "2")
        assert one.out == two.stdout
        assert "8/8" in one.err
        said = json.loads(one.out)
        assert said["policies"] == ["affinity", "session-cap:n=1/2", "plas"]
        assert len(said["results"]) == 4
        best = [result for result in said["results"] if result["is_best"]]
        assert len(best) == 3
        for result in said["results"]:
            assert [run["sessions"] for run in result["runs"]] == [6, 6]
            spread = result["metrics"]["completion_mean_s"]
            assert 0 < spread["min"] <= spread["median"] <= spread["max"]
        assert "</html>" in page.read_text()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--policy", "magic", "--load", "40"], "there is no policy"),
        (["--policy", "stock+affinity", "--load", "40"], "cannot be combined"),
        (["--policy", "stock", "--load", "fast"], "neither a number nor"),
        (["--policy", "stock", "--load", "0"], "cannot arrive"),
        (["--policy", "stock", "--load", "40", "--max-model-len", "10"], "no sessions that fit"),
    ],
)
def test_what_is_wrong_is_said_before_anything_is_run(world, capsys, arguments, says):
    assert main([*world, *arguments]) == 1
    said = capsys.readouterr()
    assert says in said.err
    assert not said.out
