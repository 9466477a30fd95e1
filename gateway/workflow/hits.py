"""Whose words a request says again: marks that turns left, found in it.

Source: ours (docs/design/sessions.md).

Invariants: nothing is changed here, but that words which waited become marks. What is found has one order,
whatever the hashes.
"""

from collections.abc import Set
from typing import Final

from gateway.domain.request import RequestFacts
from gateway.wire.marks import is_most
from gateway.workflow.ancestry import Within
from gateway.workflow.traces import Holders, Traces, holders
from gateway.workflow.turns import Turn

PHRASE_CHARS: Final = 24
"""A handed text as short as this is as likely a command, which prompts mention, too."""
MIN_HANDED_PHRASE: Final = 0.6
WHOLE: Final = 0.95
"""An agent of the same kind is told that, and nothing else."""
MIN_HANDED: Final = 0.1
"""How much of a sub-agent's opening is what it was told; the rest is its harness's template."""


class Hits:
    """How much of one turn's words was found."""

    def __init__(self, turn: Turn) -> None:
        self.turn = turn
        self.new: set[int] = set()
        self.old: set[int] = set()
        self.common: set[int] = set()
        """What other sessions left, too: phrases that a model, or a template, always says."""

    def is_handed(self, facts: RequestFacts) -> bool:
        is_same_agent = facts.transcript.agent == self.turn.session.run.main.agent
        for text in self.turn.handed:
            if is_most(self.new, text.marks):
                least = MIN_HANDED
                if text.size <= PHRASE_CHARS:
                    least = WHOLE if is_same_agent else MIN_HANDED_PHRASE
                if facts.transcript.words.share(text.marks, text.size) >= least:
                    return True
        return False

    @property
    def said(self) -> float:
        """How much of its answer, 0 to 1; 0 if too little to mean anything."""
        marks = self.turn.said
        if has_all(self.new, marks):
            return 1.0
        found = self.new - self.common
        return sum(mark in found for mark in marks) / len(marks) if is_most(found, marks) else 0.0


def search(traces: Traces, facts: RequestFacts, within: Within) -> list[Hits]:
    script = facts.transcript
    traces.read_words()
    found: dict[int, Hits] = {}

    def look(index: Holders, probes: frozenset[int], *, is_new: bool) -> None:
        for mark in probes & index.keys():
            turns = [turn for turn in holders(index, mark) if turn.client == facts.client and within(turn)]
            is_common = are_several(turns)
            for turn in turns:
                hits = found.setdefault(id(turn), Hits(turn))
                (hits.new if is_new else hits.old).add(mark)
                if is_common:
                    hits.common.add(mark)

    look(traces.marks, script.new_probes, is_new=True)
    if facts.tool_count == 0 and traces.prompts:  # only a side request is made of another's prompt
        look(traces.prompts, script.new_probes, is_new=True)
    if script.old_probes:
        for index in (traces.marks, traces.prompts, traces.asked):
            look(index, script.old_probes, is_new=False)
    # Sets have no order of their own.
    return sorted(found.values(), key=lambda hits: hits.turn.arrived_s)


def are_several(turns: list[Turn]) -> bool:
    return any(turn.session.run is not turns[0].session.run for turn in turns)


def has_all(hits: Set[int], marks: tuple[int, ...]) -> bool:
    return bool(marks) and all(mark in hits for mark in marks)
