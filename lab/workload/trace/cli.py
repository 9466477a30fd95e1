"""The options of `turnpike workload` that have to do with workloads without content, and what they do."""

import argparse
from collections.abc import Iterator
from typing import Any, Final, TypeVar

import msgspec

from lab.workload.files import members
from lab.workload.problems import Problems
from lab.workload.trace.files import write_workload
from lab.workload.trace.format import Header, Session, Source
from lab.workload.trace.importer import Choices, Corpus
from lab.workload.trace.kinds import CORPORA
from lab.workload.trace.selection import Selection

_Settings = TypeVar("_Settings", Selection, Choices)

_SELECTING: Final = {
    "first_prompt_max": ("--first-prompt-max", int, "TOKENS", "only sessions recorded from their start"),
    "turns_max": ("--turns-max", int, "N", "the first turns of the main conversation"),
    "context_max": ("--context-max", int, "TOKENS", "a thread ends before a longer prompt and output"),
    "human_gap_max_s": ("--human-gap-max", float, "S", "a person's longer pause ends a session"),
    "tool_max_s": ("--tool-max", float, "S", "tools last so long at most"),
    "turns_min": ("--turns-min", int, "N", "only sessions with so many turns left"),
}
_CHOOSING: Final = {
    "shared_part": ("--shared-part", float, "PART", "of tools and system prompt, common to all sessions"),
    "start_s": ("--from", float, "S", "where in the corpus to begin"),
    "duration_s": ("--for", float, "S", "how much of the corpus to take"),
    "rate": ("--rate", float, "X", "so many times the recorded arrivals"),
}
_FLAGS: Final = {
    "sub_agents": "--no-sub-agents",
    "seed": "--seed",
    **{name: option[0] for name, option in (_SELECTING | _CHOOSING).items()},
}


def add_workload_options(reading: argparse.ArgumentParser) -> None:
    """What `import` asks where it writes a workload."""
    group = reading.add_argument_group("for workloads")
    for name, (flag, kind, metavar, text) in (_SELECTING | _CHOOSING).items():
        group.add_argument(flag, dest=name, type=kind, metavar=metavar, help=text)
    group.add_argument(
        _FLAGS["sub_agents"],
        dest="sub_agents",
        action="store_const",
        const=False,
        help="sub-agents are tools that last as long as they ran",
    )


def given_workload_options(arguments: argparse.Namespace) -> list[str]:
    """The flags that were given."""
    return [_FLAGS[name] for name in [*_SELECTING, *_CHOOSING, "sub_agents"] if _is_given(arguments, name)]


def _is_given(arguments: argparse.Namespace, name: str) -> bool:
    return getattr(arguments, name) is not None


def import_workload(arguments: argparse.Namespace, problems: Problems) -> str:
    """Writes the workload; says what was written."""
    corpus = CORPORA[arguments.kind]
    choices = _settings(Choices, arguments)
    for name in _given(Choices, arguments):
        if name not in corpus.knows:
            raise ValueError(f"{arguments.kind} knows no {_FLAGS[name]}")
    selection = _settings(Selection, arguments)
    turns = 0

    def sessions() -> Iterator[Session]:
        nonlocal turns
        for session in selection.apply(corpus.read(members(arguments.source), problems, choices)):
            turns += session.turns
            yield session

    count = write_workload(arguments.output, _header(arguments, corpus, choices, selection), sessions())
    return f"{turns} turn(s) of {count} session(s)" if count else ""


def _header(arguments: argparse.Namespace, corpus: Corpus, choices: Choices, selection: Selection) -> Header:
    file = arguments.source.rstrip("/").rpartition("/")[2]
    how = [f"file {file}", corpus.described(choices), selection.described()]
    return Header(
        name=arguments.kind,
        sources=(Source(what="sessions", origin=corpus.origin, how="; ".join(filter(None, how))),),
        seed=choices.seed if "seed" in corpus.knows else None,
    )


def _given(kind: type[_Settings], arguments: argparse.Namespace) -> dict[str, Any]:
    given = {name: getattr(arguments, name, None) for name in kind.__struct_fields__}
    return {name: value for name, value in given.items() if value is not None}


def _settings(kind: type[_Settings], arguments: argparse.Namespace) -> _Settings:
    """Raises ValueError for a number out of bounds."""
    return msgspec.convert(_given(kind, arguments), kind)
