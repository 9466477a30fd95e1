"""Mooncake's traces: requests with global block hashes, put together to conversations.

**Source**: kvcache-ai/Mooncake (Apache-2.0), `FAST25-release/traces`, a request a line: `timestamp`
(milliseconds), `input_length`, `output_length`, `hash_ids` (blocks of 512 tokens).

**Taken**: arrivals and lengths. A request that shares blocks with an earlier one, beyond what many share, is
a further turn of that one's session; if it has all full blocks of that one, it goes on where its output
ended. Blocks that many requests share (20, and one in 200) are a text that sessions open with.

**Composed**: a person's pause is the time between two requests less what the answer is assumed to take. A
session's turns are one thread, in order of arrival.

**Lost**: texts that fewer sessions share; what one shared text has in common with another; that requests of
one session may have run at the same time. All requests are held in memory.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import takewhile
from typing import Final

import msgspec

from lab.workload.pacing import FIRST_TOKEN_S
from lab.workload.problems import Problems
from lab.workload.records import Member, lines_as
from lab.workload.trace.format import Session, Thread, Turn, TurnRef
from lab.workload.trace.importer import Choices, Corpus
from lab.workload.trace.shared_blocks import BlockTree

BLOCK_TOKENS: Final = 512
MANY: Final = 20
MANY_PART: Final = 1 / 200
OUTPUT_TOKENS_PER_S: Final = 50.0


class _Request(msgspec.Struct):
    timestamp: float
    input_length: int
    output_length: int
    hash_ids: list[int]

    @property
    def at_s(self) -> float:
        return self.timestamp / 1e3

    @property
    def ends_s(self) -> float:
        """As assumed."""
        return self.at_s + FIRST_TOKEN_S + self.output_length / OUTPUT_TOKENS_PER_S

    @property
    def full_blocks(self) -> list[int]:
        return self.hash_ids[: self.input_length // BLOCK_TOKENS]


class _Conversation(msgspec.Struct):
    opening: list[int]
    requests: list[_Request] = []
    turns: list[Turn] = []

    def add(self, request: _Request, base: int | None, tokens: int) -> None:
        """A turn that shares so much with the turn of that number."""
        pause_s = max(0.0, request.at_s - self.requests[-1].ends_s) if self.requests else 0.0
        self.turns.append(
            Turn(
                input_tokens=request.input_length,
                output_tokens=max(1, request.output_length),
                prefix_of=None if base is None else TurnRef(0, base),
                prefix_tokens=tokens,
                pause_s=round(pause_s, 3),
                is_pause_human=bool(self.requests),
            )
        )
        self.requests.append(request)


def _mooncake(members: Iterable[Member], problems: Problems, choices: Choices) -> Iterator[Session]:
    for member in members:
        requests = [
            request
            for number, request in lines_as(_Request, member, problems)
            if _is_sound(request, f"{member.name}, line {number}", problems)
            and choices.is_within(request.at_s)
        ]
        requests.sort(key=lambda request: request.timestamp)
        for number, conversation in enumerate(_conversations(requests)):
            arrival_s = (conversation.requests[0].at_s - choices.start_s) / choices.rate
            opening = conversation.opening
            thread = Thread(
                turns=tuple(conversation.turns),
                shared_key=f"{member.name}/{opening[-1]}" if opening else None,
                shared_tokens=len(opening) * BLOCK_TOKENS,
            )
            yield Session(
                id=f"{member.name}:{number}",
                arrival_s=round(arrival_s, 6),
                agent_type="chat",
                threads=(thread,),
            )


def _is_sound(request: _Request, where: str, problems: Problems) -> bool:
    if request.input_length >= 1 and len(request.hash_ids) >= request.input_length // BLOCK_TOKENS:
        return True
    problems.add(where, f"{len(request.hash_ids)} blocks for {request.input_length} tokens")
    return False


def _conversations(requests: list[_Request]) -> list[_Conversation]:
    """In order of their first requests."""
    sharing = Counter(block for request in requests for block in request.full_blocks)
    many = max(MANY, MANY_PART * len(requests))
    tree: BlockTree[int] = BlockTree()
    places: list[tuple[_Conversation, int]] = []
    found: list[_Conversation] = []
    for number, request in enumerate(requests):
        blocks = request.full_blocks
        opening = list(takewhile(lambda block: sharing[block] >= many, blocks))
        shared, _ = tree.add(number, blocks)
        if shared is None or shared.blocks <= len(opening):
            conversation, base, tokens = _Conversation(opening), None, 0
            found.append(conversation)
        else:
            conversation, base = places[shared.owner]
            tokens = shared.blocks * BLOCK_TOKENS
            if shared.is_extension:
                before = requests[shared.owner]
                tokens = min(before.input_length + max(1, before.output_length), request.input_length)
        places.append((conversation, len(conversation.turns)))
        conversation.add(request, base, tokens)
    return found


MOONCAKE: Final = Corpus(
    read=_mooncake,
    origin="Mooncake FAST'25 traces (Apache-2.0)",
    how="arrivals and lengths as recorded; sessions and prefixes from block hashes; pauses estimated",
    knows=frozenset({"start_s", "duration_s", "rate"}),
)
