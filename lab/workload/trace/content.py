"""Which blocks of two prompts are the same? Names for them, as a prefix cache wants them.

Theory: a prompt consists of texts, one behind the other: one that sessions open with, what a turn brought,
what a turn answered. A text stands at one place only and behind one beginning only
(docs/contribute/workloads.md), so a text and a place in it fix every token up to there. A block's key
therefore is made of the text that its last token belongs to and the number of the block. It means what a
chained hash means, and costs an addition.

Invariants: two keys are equal exactly if all tokens up to the end of their blocks are, whatever the turns,
threads and sessions (ids of sessions being unique). Nothing depends on what was asked before: memory only
saves time, and holds the latest turn of each thread of the sessions that have not been forgotten.
"""

from collections.abc import Iterator, Sequence
from hashlib import blake2b
from typing import Final

from lab.workload.trace.format import Session, TurnRef

KEY_BYTES: Final = 32
_LOW_BYTES: Final = 8
_LOW_MASK: Final = (1 << 8 * _LOW_BYTES) - 1


class TurnContent:
    """A turn's prompt, and as much of its output as has been generated."""

    def __init__(self, session: Session, ref: TurnRef, block_size: int, known: Sequence[bytes]) -> None:
        turn = session.threads[ref.thread].turns[ref.turn]
        self.ref = ref
        self.tokens = turn.input_tokens
        """How many there are by now."""
        self.keys: list[bytes] = list(known)
        """Of the blocks that are full, from the first token on; grows with the output."""
        self._block_size = block_size
        self._output = _Text(_name(session.id, ref, "out"))
        spans = list(_spans(session, ref, turn.input_tokens, known=len(known) * block_size))
        for start, end, text in reversed(spans):
            self._fill(text, start, end)

    def extend(self, tokens: int) -> Sequence[bytes]:
        """So many more tokens of output: the keys of the blocks that they fill. No limit is checked."""
        before = len(self.keys)
        self._fill(self._output, self.tokens, self.tokens + tokens)
        self.tokens += tokens
        return self.keys[before:]

    def _fill(self, text: "_Text", start: int, end: int) -> None:
        """Adds the blocks that end within `start`..`end`, where `text` stands."""
        first = max(start // self._block_size, len(self.keys))
        self.keys += text.keys(first, end // self._block_size)


class ContentChain:
    """The keys of the turns of many sessions, for engines with blocks of `block_size` tokens."""

    def __init__(self, block_size: int) -> None:
        if block_size < 1:
            raise ValueError(f"blocks of {block_size} tokens")
        self.block_size = block_size
        self._latest: dict[str, dict[int, TurnContent]] = {}

    def begin(self, session: Session, ref: TurnRef) -> TurnContent:
        """The turn's prompt, to be extended by its output."""
        content = TurnContent(session, ref, self.block_size, self._known(session, ref))
        self._latest.setdefault(session.id, {})[ref.thread] = content
        return content

    def prompt_keys(self, session: Session, ref: TurnRef) -> Sequence[bytes]:
        """Of the full blocks of the turn's prompt."""
        return TurnContent(session, ref, self.block_size, self._known(session, ref)).keys

    def keys_of_nobody(self, name: str, tokens: int) -> Sequence[bytes]:
        """Of the full blocks of a text that no workload has."""
        return list(_Text(f"nobody's {name}").keys(0, tokens // self.block_size))

    def forget(self, session_id: str) -> None:
        """The session is over, or runs elsewhere."""
        self._latest.pop(session_id, None)

    @property
    def sessions(self) -> int:
        """How many are remembered."""
        return len(self._latest)

    def _known(self, session: Session, ref: TurnRef) -> Sequence[bytes]:
        """The first keys, as far as the turn that this one builds on is remembered."""
        turn = session.threads[ref.thread].turns[ref.turn]
        base = turn.prefix_of
        if base is None:
            return ()
        content = self._latest.get(session.id, {}).get(base.thread)
        if content is None or content.ref != base:
            return ()
        return content.keys[: turn.prefix_tokens // self.block_size]


class _Text:
    """One text: the same tokens wherever it stands."""

    def __init__(self, name: str) -> None:
        digest = blake2b(name.encode(), digest_size=KEY_BYTES).digest()
        self._high = digest[:-_LOW_BYTES]
        self._low = int.from_bytes(digest[-_LOW_BYTES:], "big")

    def keys(self, first: int, end: int) -> Iterator[bytes]:
        """Of the blocks `first`..`end`. The number changes the low bytes: some take them for the whole."""
        high, low = self._high, self._low
        for number in range(first, end):
            yield high + (low + number & _LOW_MASK).to_bytes(_LOW_BYTES, "big")


def _name(session_id: str, ref: TurnRef, part: str) -> str:
    return f"turn {ref.thread} {ref.turn} {part} {session_id}"


def _spans(session: Session, ref: TurnRef, tokens: int, *, known: int) -> Iterator[tuple[int, int, _Text]]:
    """The texts that the turn's prompt consists of: from its end, at `tokens`, back to what is `known`."""
    here: TurnRef | None = ref
    end = tokens
    while here is not None and end > known:
        turn = session.threads[here.thread].turns[here.turn]
        if end > turn.input_tokens:
            yield turn.input_tokens, end, _Text(_name(session.id, here, "out"))
            end = turn.input_tokens
        key, opening = session.opening(here)
        start = max(turn.prefix_tokens, opening)
        if end > start:
            yield start, end, _Text(_name(session.id, here, "in"))
            end = start
        if opening and end > known:
            yield 0, end, _Text(f"shared {key}")
        here = turn.prefix_of
