"""Real agents, all of them nameless and several at once, through a gateway on the shared real engines."""

from dataclasses import replace
from pathlib import Path

import pytest

from demo.agents import MINI_SWE_AGENT, Agent, Launch
from demo.processes import Children
from demo.runs import Place, Plan, run_agents


@pytest.fixture
def children(tmp_path):
    found = Children(f"test-{tmp_path}")
    yield found
    assert found.stop_all() == 0


def silent(line):
    pass


def stand_in(script):

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
