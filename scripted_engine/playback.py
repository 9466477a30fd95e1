"""Which token comes next: one reply being played to one request, whatever the model runner.

Position is the number of tokens the request has produced, given by the caller on every step.
So a reply survives preemption, chunked prefill and batch moves, and does not care whether the
produced ids are known yet (asynchronous scheduling reports them a step late).

* Unconstrained requests get the reply's tokens, then the end-of-turn token for ever
  (``ignore_eos`` pads with it). ``max_tokens`` cuts the reply as it would a model's.
* Requests under a grammar (structured output, required or named tool choice) get the first
  rendering of the reply whose next token the grammar allows, keeping what is already said.
  Where none fits, the playback *yields* for the rest of the request: it takes the quickest way
  out that the grammar allows (end, closing quote, bracket), and where even that is forbidden it
  leaves the choice to the model. The result obeys the grammar and is short, not scripted.
* A forced token that something else forbids (``min_tokens``, ``logit_bias``, bad words) is
  replaced by a blank; see ``processor``.

Pure: token ids in, token ids out.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

UNKNOWN = -1
"""A produced token whose id is not known yet."""


@dataclass(frozen=True)
class Vocabulary:
    """The few tokens a playback needs to know by name."""

    end: int
    """Ends the turn."""
    blank: int
    """Stands in where a forced token is forbidden outside a grammar."""
    closers: tuple[int, ...]
    """Ways out of a grammar, the best first."""


@dataclass
class Playback:
    """One request's reply. ``renderings`` are token lists, the wanted one first."""

    renderings: Sequence[Sequence[int]]
    vocabulary: Vocabulary
    constrained: bool = False
    _said: list[int] = field(default_factory=list)
    """What a constrained request has said on script. Shorter than its position: it has yielded."""

    def token_at(self, position: int) -> int:
        """The token of an unconstrained request after ``position`` produced ones."""
        reply = self.renderings[0]
        return reply[position] if position < len(reply) else self.vocabulary.end

    def resume(self, produced: Sequence[int]) -> None:
        """Take a constrained request up again whose first tokens were produced earlier."""
        self._said = list(produced)

    def constrained_token_at(self, position: int, is_allowed: Callable[[int], bool]) -> int | None:
        """The token of a constrained request; None leaves the choice to the model.

        ``is_allowed`` answers for the grammar at this position. Asking twice for a position
        gives the same answer.
        """
        del self._said[position:]
        if len(self._said) == position:
            for rendering in self.renderings:
                token = rendering[position] if position < len(rendering) else self.vocabulary.end
                if self._fits(rendering) and is_allowed(token):
                    self._said.append(token)
                    return token
        return next((token for token in self.vocabulary.closers if is_allowed(token)), None)

    def _fits(self, rendering: Sequence[int]) -> bool:
        """Whether what was said so far is how this rendering begins, or all of it and more."""
        pairs = zip(self._said, rendering, strict=False)
        return all(said in (token, UNKNOWN) for said, token in pairs)
