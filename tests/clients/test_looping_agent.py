"""A real agent whose model says the same again and again: it is seen, told so, and ends."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from demo.agents import MINI_SWE_AGENT
from demo.install import install_agents
from demo.processes import Children
from demo.runs import Place, Plan, run_agents
from tests.clients.site import Site, opened
from tests.engines import MODEL, Fleet

pytestmark = [pytest.mark.nightly, pytest.mark.engine, pytest.mark.agents, pytest.mark.timeout(700)]

REPEATS = 5
ATTEMPTS = 2
"""LiteLLM tells 403 of an OpenAI-compatible server as a general error, which mini-swe-agent tries again."""
AGENT = replace(
    MINI_SWE_AGENT,
    env=lambda launch: {
        **MINI_SWE_AGENT.env(launch),
        "MSWEA_MODEL_RETRY_STOP_AFTER_ATTEMPT": str(ATTEMPTS),
    },
)
BOUND = f'[[bounds]]\nname = "loop"\nrepeats = {REPEATS}\n'


def _say(line: str) -> None:
    print(line)


def looping() -> dict[str, object]:
    """A call for which nothing changes, for a hundred turns; each time with other words beside it."""
    call = {"name": "bash", "arguments": {"command": "cat price.py"}}
    turns = [{"text": f"Let me look, for the {n}. time.", "tool_calls": [call]} for n in range(100)]
    return {"scripts": {"mini-swe-agent": {"turns": turns, "without_tools": "."}}}


@pytest.fixture
def site(fleet: Fleet, tmp_path: Path) -> Iterator[Site]:
    with opened(fleet, tmp_path / "gateway", more_settings=BOUND) as found:
        yield found


async def test_mini_swe_agent_is_stopped_when_it_loops(fleet: Fleet, site: Site, tmp_path: Path):
    fleet.play(looping())
    children = Children(f"test-{tmp_path}")
    place = Place(gateway_url=site.url, model=MODEL, directory=tmp_path / "runs", children=children)
    place.directory.mkdir()
    try:
        await install_agents(children, place.directory, _say)
        plan = Plan(name="loop", agent=AGENT, strip=True)
        (run,) = await run_agents(place, [plan], _say)
    finally:
        children.stop_all()
    statuses = [turn.status for turn in run.turns]
    assert statuses == [200] * REPEATS + [403] * ATTEMPTS, "the engine is asked for nothing beyond the bound"
    assert len({turn.session for turn in run.turns}) == 1
    assert run.exit_code is not None and not run.is_edited, "it ended, and did not do its work"
    metrics = site.metrics()
    assert metrics['turnpike_bounds_total{action="refuse",bound="loop",limit="repeats"}'] == ATTEMPTS
    assert "the same calls with the same results 5 times in a row" in run.log.read_text()
