"""Small sessions and corpora, made up here."""

import csv
import io
from typing import Any

from lab.workload.problems import Problems
from lab.workload.records import Member
from lab.workload.trace.format import Session, Thread, Tool, Turn, TurnRef, check
from lab.workload.trace.importer import Choices, Corpus


def chain(*prompts: int, output: int = 10, tool_s: float = 1.0) -> tuple[Turn, ...]:
    """Turns that build on one another, a tool between any two."""
    turns = []
    for at, prompt in enumerate(prompts):
        is_last = at == len(prompts) - 1
        turns.append(
            Turn(
                input_tokens=prompt,
                output_tokens=output,
                prefix_of=TurnRef(0, at - 1) if at else None,
                prefix_tokens=min(prompts[at - 1] + output, prompt) if at else 0,
                tools=() if is_last else (Tool(name="tool", duration_s=tool_s),),
            )
        )
    return tuple(turns)


def session(id_: str = "s", *prompts: int, output: int = 10, tool_s: float = 1.0, **more: Any) -> Session:
    turns = chain(*(prompts or (100, 120)), output=output, tool_s=tool_s)
    return Session(id=id_, threads=(Thread(turns=turns),), **more)


def table(*rows: tuple[Any, ...], name: str = "corpus") -> Member:
    text = io.StringIO()
    csv.writer(text).writerows(rows)
    return Member(name, [line.encode() for line in text.getvalue().splitlines(keepends=True)])


def imported(corpus: Corpus, *members: Member, **choices: Any) -> list[Session]:
    """The sessions, which are valid and in order; there must be no problem."""
    sessions, problems = with_problems(corpus, *members, **choices)
    assert problems == []
    return sessions


def with_problems(corpus: Corpus, *members: Member, **choices: Any) -> tuple[list[Session], list[str]]:
    problems = Problems()
    sessions = list(corpus.read(iter(members), problems, Choices(**choices)))
    for found in sessions:
        check(found)
    assert [s.arrival_s for s in sessions] == sorted(s.arrival_s for s in sessions)
    assert len({s.id for s in sessions}) == len(sessions)
    return sessions, problems.shown
