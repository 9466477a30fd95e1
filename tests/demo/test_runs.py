"""Real agents, all of them nameless and several at once, through a gateway on the shared real engines."""

from dataclasses import replace
from pathlib import Path

import pytest

from demo import records, report
from demo.agents import AGENTS, MINI_SWE_AGENT, Agent, Launch
from demo.install import install_agents
from demo.processes import Children
from demo.runs import Place, Plan, plans, run_agents
from demo.scripts import scripts
from demo.telemetry import EngineTelemetry
from tests.engines import MODEL, Fleet
from tests.gateways import running_gateway
from tests.prerequisites import require_command


@pytest.fixture
def children(tmp_path):
    found = Children(f"test-{tmp_path}")
    yield found
    assert found.stop_all() == 0


def silent(line):
    """Nobody reads along."""


@pytest.mark.engine
@pytest.mark.agents
@pytest.mark.timeout(300)
async def test_runs_that_say_nothing_of_themselves_are_told_apart(fleet: Fleet, children, tmp_path):
    require_command("npm", install="Node.js 20 or newer brings it")
    await install_agents(children, tmp_path, silent)
    fleet.play(scripts())
    backends = [engine.url for engine in fleet.scripted]
    stream = tmp_path / "stream.jsonl"
    settings = f'[stream]\npath = "{stream}"\n'
    nameless = [replace(plan, strip=True) for plan in plans()]
    with running_gateway(backends, tmp_path / "gateway", more_settings=settings) as port:
        place = Place(
            gateway_url=f"http://127.0.0.1:{port}", model=MODEL, directory=tmp_path, children=children
        )
        made = await run_agents(place, nameless, silent)
    rows = report.make(made, records.read(stream), EngineTelemetry()).rows
    assert [(row.is_recognised, row.is_done) for row in rows] == 2 * len(AGENTS) * [(True, True)], rows


def stand_in(script):
    """An agent that is a shell script."""

    def argv(launch: Launch) -> list[str | Path]:
        return ["sh", "-c", script]

    return replace(MINI_SWE_AGENT, argv=argv)


async def run_one(agent: Agent, children, tmp_path, say=silent):
    place = Place(gateway_url="http://127.0.0.1:9", model="m", directory=tmp_path, children=children)
    [run] = await run_agents(place, [Plan(name="one", agent=agent, strip=False)], say)
    return run


async def test_an_edit_is_looked_at_and_not_believed(children, tmp_path):
    repair = "sed -i.orig 's/quantity + unit_price/quantity * unit_price/' price.py"
    assert (await run_one(stand_in(repair), children, tmp_path / "a")).is_done
    cheat = f"{repair}; echo 'print(1)' > check_price.py"
    run = await run_one(stand_in(cheat), children, tmp_path / "b")
    assert (run.is_edited, run.does_test_pass) == (True, False)


async def test_an_agent_gets_nothing_of_the_callers_settings(children, tmp_path, monkeypatch):
    monkeypatch.setenv("ANTHROPIC_AUTH_TOKEN", "mine")
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")
    run = await run_one(stand_in("env; false"), children, tmp_path)
    text = run.log.read_text()
    assert run.exit_code == 1
    assert "ANTHROPIC_AUTH_TOKEN" not in text
    assert "HTTPS_PROXY" not in text
    assert f"HOME={tmp_path}/one/home" in text
