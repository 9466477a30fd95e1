"""Several agent runs at once, each through a hop of its own, each in a scratch directory of its own."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from demo import workshop
from demo.agents import AGENTS, Agent, Launch, environment
from demo.balancer import Choose
from demo.hop import Exchange, Hop
from demo.processes import Children, last_lines
from demo.progress import Say
from demo.scripts import prompt

RUN_WITHIN_S = 300.0
SAY_EVERY_S = 5.0


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where runs are made."""

    gateway_url: str | Choose
    """Or any server that speaks the agents' protocols, or what chooses one for each request."""
    model: str
    directory: Path
    """Every run gets a directory in here."""
    children: Children


@dataclass(frozen=True, kw_only=True)
class Plan:
    """One run to make: which agent, and whether its identity is hidden from the gateway."""

    name: str
    agent: Agent
    strip: bool


@dataclass(kw_only=True)
class AgentRun:
    """One run that was made: the truth about it, and the receipts its requests came back with."""

    plan: Plan
    exit_code: int | None = None
    """None when it was stopped for taking too long."""
    duration_s: float = 0.0
    is_edited: bool = False
    does_test_pass: bool = False
    log: Path
    exchanges: list[Exchange] = field(default_factory=list)

    @property
    def turns(self) -> list[Exchange]:
        """The requests that are steps of the agent, in order."""
        return [exchange for exchange in self.exchanges if exchange.offers_tools]

    @property
    def side_requests(self) -> list[Exchange]:
        """Requests to the model beside the agent's own steps, such as the one for a title."""
        return [e for e in self.exchanges if e.method == "POST" and not e.offers_tools]

    @property
    def sessions(self) -> set[str | None]:
        """The sessions that the gateway took the run's turns for: one, if it was right."""
        return {exchange.session for exchange in self.turns}

    @property
    def is_done(self) -> bool:
        """Whether the agent finished and its work is really there."""
        return self.exit_code == 0 and self.is_edited and self.does_test_pass


def plans(agents: Sequence[Agent] = AGENTS, *, runs_each: int = 2) -> list[Plan]:
    """Every second run of an agent has its identity taken out."""
    return [
        Plan(name=f"{agent.name}-{number}", agent=agent, strip=number % 2 == 0)
        for agent in agents
        for number in range(1, runs_each + 1)
    ]


async def run_agents(place: Place, planned: Sequence[Plan], say: Say) -> list[AgentRun]:
    """Makes all these runs at the same time and returns when the last has ended, in the order planned."""
    runs = [AgentRun(plan=plan, log=place.directory / plan.name / "output.log") for plan in planned]
    async with asyncio.TaskGroup() as together:
        pending = {together.create_task(_make(run, place, say)) for run in runs}
        while pending:
            _, pending = await asyncio.wait(pending, timeout=SAY_EVERY_S)
            if pending:
                turns = sum(len(run.turns) for run in runs)
                say(f"{len(pending)} agents at work, {turns} turns so far")
    return runs


async def _make(run: AgentRun, place: Place, say: Say) -> None:
    plan = run.plan
    here = place.directory / plan.name
    # Never in the event loop: it carries the other runs' traffic, and would add to their times.
    work = await asyncio.to_thread(workshop.prepare, here / "work")
    home = here / "home"
    home.mkdir()
    async with Hop(place.gateway_url, strip=plan.strip) as hop:
        run.exchanges = hop.exchanges
        launch = Launch(base_url=hop.base_url, model=place.model, prompt=prompt(plan.agent.name), home=home)
        await _drive(run, launch, place.children, work)
    run.is_edited = workshop.is_edited(work)
    run.does_test_pass = await asyncio.to_thread(workshop.does_test_pass, work)
    say(_ended(run))


async def _drive(run: AgentRun, launch: Launch, children: Children, work: Path) -> None:
    agent = run.plan.agent
    started = time.monotonic()
    process = await children.spawn(agent.argv(launch), cwd=work, env=environment(agent, launch), log=run.log)
    try:
        run.exit_code = await asyncio.wait_for(process.wait(), RUN_WITHIN_S)
    except TimeoutError:
        run.exit_code = None
    finally:
        await children.stop(process, within_s=2.0)
    run.duration_s = time.monotonic() - started


def _ended(run: AgentRun) -> str:
    if run.is_done:
        return f"{run.plan.name}: done in {run.duration_s:.1f} s, {len(run.turns)} turns, file repaired"
    exited = "was stopped" if run.exit_code is None else f"exit status {run.exit_code}"
    why = exited if run.exit_code != 0 else "the file is not repaired"
    return f"{run.plan.name}: FAILED, {why} ({last_lines(run.log, 1)}); see {run.log}"
