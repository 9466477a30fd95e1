"""The life of a thing as a table: for each state, the steps that it allows and the state after each.

What is not in the table is a bug on our side, never a client's fault or a replica's, and raises. The diagrams
in the documentation are made from the tables, and tests compare the two.
"""

from collections.abc import Mapping
from typing import Generic, TypeVar

from gateway.domain.words import Word

S = TypeVar("S", bound=Word)
T = TypeVar("T", bound=Word)


class StateError(RuntimeError):
    """A step that a table does not allow."""


class StateTable(Generic[S, T]):
    def __init__(
        self, thing: str, transitions: Mapping[S, Mapping[T, S]], error: type[StateError] = StateError
    ) -> None:
        """`thing`: what has this life, for messages; the first state in `transitions` is where it begins."""
        self._thing = thing
        self._transitions = transitions
        self._error = error

    def advance(self, state: S, step: T) -> S:
        """The state after `step`. Raises `StateError` if the table has no such pair."""
        try:
            return self._transitions[state][step]
        except KeyError:
            raise self._error(f"{self._thing} that is {state.value} cannot {step.value}") from None

    def as_mermaid(self) -> str:
        """As a Mermaid state diagram."""
        first = next(iter(self._transitions))
        lines = ["stateDiagram-v2", f"    [*] --> {first.value}"]
        for state, steps in self._transitions.items():
            lines += [f"    {state.value} --> {after.value}: {step.value}" for step, after in steps.items()]
            if all(after is state for after in steps.values()):
                lines.append(f"    {state.value} --> [*]")
        return "\n".join(lines) + "\n"
