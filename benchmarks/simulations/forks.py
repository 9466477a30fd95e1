"""Sessions that fork: one long prompt, whose answer starts many sub-agents that go on from there."""

from random import Random
from typing import Final

from lab.workload.trace.format import Session, Thread, Tool, Turn, TurnRef, check
from lab.workload.trace.spread import Spread

CONTEXT: Final = Spread(median=40_000, sigma=0.4, least=10_000, most=90_000)
TASK: Final = Spread(median=500, sigma=0.6, least=50, most=4_000)
ANSWER: Final = Spread(median=300, sigma=0.5, least=20, most=2_000)
RESULT: Final = Spread(median=900, sigma=0.8, least=20, most=8_000)
_OPENING, _SPLIT, _REPORT, _FINAL = 3_000, 600, 300, 800
"""Tokens: the system prompt, the answer that starts them, what each brings back, the last answer."""
_TURNS: Final = 3


def forking(count: int, sub_agents: int, *, every_s: float, seed: int) -> list[Session]:
    """So many, as Poisson arrivals."""
    dice = Random(f"forks {seed}")
    now, made = 0.0, []
    for number in range(count):
        now += dice.expovariate(1 / every_s)
        made.append(_forking(f"fork-{number}", sub_agents, dice, now))
    return made


def _forking(name: str, sub_agents: int, dice: Random, arrival_s: float) -> Session:
    context = CONTEXT.count(dice)
    left = context + _SPLIT
    starts = tuple(Tool(name="task", starts_thread=number + 1) for number in range(sub_agents))
    main = Thread(
        shared_key="forking",
        shared_tokens=_OPENING,
        turns=(
            Turn(input_tokens=context, output_tokens=_SPLIT, tools=starts),
            Turn(
                input_tokens=left + sub_agents * _REPORT,
                output_tokens=_FINAL,
                prefix_of=TurnRef(0, 0),
                prefix_tokens=left,
            ),
        ),
    )
    threads = (main, *(_sub_agent(number + 1, left, dice) for number in range(sub_agents)))
    session = Session(id=name, threads=threads, arrival_s=arrival_s, agent_type="forking")
    check(session)
    return session


def _sub_agent(number: int, left: int, dice: Random) -> Thread:
    turns: list[Turn] = []
    before, base = left, TurnRef(0, 0)
    for at in range(_TURNS):
        tokens = before + (TASK if at == 0 else RESULT).count(dice)
        answer = ANSWER.count(dice)
        reads = (Tool(name="read", duration_s=dice.expovariate(1.0)),) if at < _TURNS - 1 else ()
        turns.append(
            Turn(
                input_tokens=tokens,
                output_tokens=answer,
                prefix_of=base,
                prefix_tokens=before,
                tools=reads,
            )
        )
        before, base = tokens + answer, TurnRef(number, at)
    return Thread(turns=tuple(turns))
