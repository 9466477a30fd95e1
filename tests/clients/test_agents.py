"""Real agents, unmodified: their work gets done, by one session a run, whatever the backend does.

Every run is nameless: what an agent says of itself is taken out on the way. Two runs of each agent work at
the same time, in the same words.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from demo.agents import CLAUDE_CODE, CODEX, MINI_SWE_AGENT, Agent
from demo.install import KIT, Kit, install_agents
from demo.processes import Children
from demo.runs import AgentRun, Place, Plan, run_agents
from tests.clients.faults import Cut, Refuse, Rule, once_in_each_conversation, pass_all
from tests.clients.programs import AGENTS_KIT, CLINE, FRAMEWORKS, FRAMEWORKS_KIT, QWEN_CODE, all_scripts
from tests.clients.site import Site
from tests.engines import MODEL, Fleet
from tests.prerequisites import require_command

pytestmark = [pytest.mark.nightly, pytest.mark.engine, pytest.mark.agents, pytest.mark.timeout(700)]

RUNS_EACH = 2
AGENTS = (MINI_SWE_AGENT, CLAUDE_CODE, CODEX, QWEN_CODE, CLINE)
STREAMED = tuple(agent for agent in FRAMEWORKS if agent.name.endswith("-streamed"))
WHOLE = tuple(agent for agent in FRAMEWORKS if agent not in STREAMED)
# What becomes of a run whose answer breaks off: half of an answer that was not streamed is asked for again.
ASKS_AGAIN = (MINI_SWE_AGENT, CLAUDE_CODE, CODEX, CLINE, *WHOLE)
GIVES_UP = (QWEN_CODE, *STREAMED)


def say(line: str) -> None:
    print(line)


@pytest.fixture
def place(fleet: Fleet, site: Site, tmp_path: Path) -> Iterator[Place]:
    fleet.play(all_scripts())
    children = Children(f"test-{tmp_path}")
    yield Place(gateway_url=site.url, model=MODEL, directory=tmp_path, children=children)
    children.stop_all()  # cline leaves a process of its own behind
    site.assert_books_balance()


async def runs_of(agent: Agent, place: Place, site: Site, rule: Rule = pass_all) -> list[AgentRun]:
    kit = kit_of(agent)
    if kit.npm:
        require_command("npm", install="Node.js 20 or newer brings it")
    await install_agents(place.children, place.directory, say, kit)
    site.faults.play(rule)
    plans = [Plan(name=f"{agent.name}-{n}", agent=agent, strip=True) for n in range(RUNS_EACH)]
    return await run_agents(place, plans, say)


def kit_of(agent: Agent) -> Kit:
    if agent in FRAMEWORKS:
        return FRAMEWORKS_KIT
    return AGENTS_KIT if agent in (QWEN_CODE, CLINE) else KIT


def assert_one_session_each(runs: Sequence[AgentRun], site: Site) -> None:
    """If every guess is right. An opening that is asked again is one: others may ask the same."""
    for run in runs:
        print(run.plan.name, f"{run.duration_s:.1f} s", [(e.status, e.session, e.source) for e in run.turns])
    guessed = {session["id"]: session["guess"] for session in site.snapshot()["sessions"]}
    sessions = [{_first_of(session, guessed) for session in run.sessions} for run in runs]
    assert all(len(of_run) == 1 for of_run in sessions), sessions
    assert len(set().union(*sessions)) == len(runs), "no two runs are one session"


def _first_of(session: str | None, guessed: dict[str, str | None]) -> str | None:
    while session is not None and (before := guessed.get(session)) is not None:
        session = before
    return session


def assert_done(runs: Sequence[AgentRun]) -> None:
    assert [run.is_done for run in runs] == [True] * RUNS_EACH, runs[0].log.read_text()[-3000:]


def agents(*some: Agent) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("agent", some, ids=[agent.name for agent in some])


@agents(QWEN_CODE, CLINE, *FRAMEWORKS)
async def test_the_work_is_done_in_one_session(agent: Agent, place: Place, site: Site) -> None:
    """The demo's own agents do this in `make demo` and its test."""
    runs = await runs_of(agent, place, site)
    assert_one_session_each(runs, site)
    assert_done(runs)


@agents(*AGENTS, *FRAMEWORKS)
async def test_a_503_in_the_middle_is_asked_again(agent: Agent, place: Place, site: Site) -> None:
    runs = await runs_of(agent, place, site, once_in_each_conversation(Refuse()))
    assert_one_session_each(runs, site)
    assert_done(runs)
    assert site.faults.faults == [Refuse()] * RUNS_EACH


@agents(*ASKS_AGAIN)
@pytest.mark.parametrize("cut", [Cut(1), Cut(-1)], ids=["early", "late"])
async def test_a_run_survives_a_backend_that_dies(agent: Agent, cut: Cut, place: Place, site: Site) -> None:
    """Early, the same is asked again, perhaps not streamed; late, a finished tool call may be acted on."""
    runs = await runs_of(agent, place, site, once_in_each_conversation(cut))
    assert_one_session_each(runs, site)
    assert_done(runs)
    assert site.faults.faults == [cut] * RUNS_EACH


@agents(*GIVES_UP)
async def test_a_run_is_told_that_its_backend_died(agent: Agent, place: Place, site: Site) -> None:
    """It must not take half an answer for a whole one."""
    runs = await runs_of(agent, place, site, once_in_each_conversation(Cut()))
    assert_one_session_each(runs, site)
    assert [(run.exit_code == 0, run.is_done) for run in runs] == [(False, False)] * RUNS_EACH
    assert site.faults.faults == [Cut()] * RUNS_EACH
