"""Prompts of exactly the tokens that a workload says, sharing exactly what it says that they share.

A workload has no words (docs/contribute/workloads.md), so its texts are made up, as ids of tokens: drawn from
the text's name, so that equal texts are equal everywhere. What a turn answered is what the backend said that
it answered; where it did not say, it is made up as well, and a later prompt finds only the prompt cached.

Invariant: of a session that is over nothing is kept.
"""

import random
from array import array
from typing import Final

from lab.workload.trace.format import Session, TurnRef

TOKEN_IDS: Final = range(300, 900)
"""Pieces of words, in whatever vocabulary that is trained on text: those before are bytes and special."""


class Prompts:
    def __init__(self, token_ids: range = TOKEN_IDS) -> None:
        self._token_ids = token_ids
        self._said: dict[str, dict[TurnRef, array[int]]] = {}
        """By session and turn: its prompt with its answer behind it."""

    def prompt(self, session: Session, ref: TurnRef) -> list[int]:
        turn = session.threads[ref.thread].turns[ref.turn]
        tokens: list[int] = []
        if turn.prefix_of is not None:
            tokens += self._said[session.id][turn.prefix_of][: turn.prefix_tokens]
        key, shared_tokens = session.opening(ref)
        if shared_tokens:
            tokens += self._text(f"shared {key}", shared_tokens)
        tokens += self._text(f"in {session.id} {ref.thread} {ref.turn}", turn.input_tokens - len(tokens))
        return tokens

    def answered(self, session: Session, ref: TurnRef, prompt: list[int], answer: list[int]) -> None:
        """`answer`: the tokens that the backend named, as many as it did."""
        missing = session.threads[ref.thread].turns[ref.turn].output_tokens - len(answer)
        made_up = self._text(f"out {session.id} {ref.thread} {ref.turn}", missing)
        self._said.setdefault(session.id, {})[ref] = array("I", prompt + answer + made_up)

    def forget(self, session_id: str) -> None:
        self._said.pop(session_id, None)

    def __len__(self) -> int:
        """Sessions that are remembered."""
        return len(self._said)

    def _text(self, name: str, tokens: int) -> list[int]:
        dice = random.Random(name)  # noqa: S311 - no secret
        return dice.choices(self._token_ids, k=max(0, tokens))
