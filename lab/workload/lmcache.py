"""LMCache's agent traces: what an engine's log kept of mini-swe-agent and of tau-bench.

**Source**: LMCache/lmcache-agent-trace (Apache-2.0), a `.jsonl` file a session, a line a request:
`timestamp` (microseconds), `input`, `output`, `session_id`. `input` is the text of the request's *user*
messages, one after another with an empty line between; `output` is the text of the answer. Lines are not in
order.

**Taken**: the first `input` is the first user message, and what an `input` has more than the one before it is
the next. Between them stands the recorded `output` as the assistant's message, which is how both agents keep
their history. Times between requests as recorded. In tau-bench's files two models speak, the agent and the
one that plays the customer; each `input` continues the thread that it extends.

**Composed**: chat messages from flat text. Where a request's `output` is empty and the next `input` is the
same, the agent called a tool, and the log kept neither call nor result: an empty assistant message and an
empty `tool` message stand for them, without ids. How long an answer took (`pacing`, at most until the next
request). The model's name is `unknown`.

**Lost**: system prompts, tool schemas, tool calls and results.
"""

from collections.abc import Iterable, Iterator
from random import Random
from typing import Any, Final

import msgspec

from lab.workload.pacing import answer_s
from lab.workload.problems import Problems
from lab.workload.records import Member, lines_as
from lab.workload.sessions import Session, Turn, chat_turn, rng_of

_BETWEEN: Final = "\n\n"


class _Row(msgspec.Struct):
    timestamp: int
    input: str
    output: str


class _Thread:
    """A history that grows with every request that extends it."""

    def __init__(self, name: str, text: str) -> None:
        self.name = name
        self.text = text
        self.history: list[dict[str, Any]] = [{"role": "user", "content": text}]

    def is_extended_by(self, text: str) -> bool:
        return text == self.text or text.startswith(self.text + _BETWEEN)

    def extend(self, text: str) -> None:
        """The request's new last message."""
        if text == self.text:
            self.history.append({"role": "tool", "content": ""})
        else:
            self.history.append({"role": "user", "content": text[len(self.text) + len(_BETWEEN) :]})
        self.text = text


def lmcache(members: Iterable[Member], problems: Problems, seed: int) -> Iterator[Session]:
    for member in members:
        rows = sorted((row for _, row in lines_as(_Row, member, problems)), key=lambda row: row.timestamp)
        if not rows:
            continue
        yield Session(
            client=f"lmcache-{member.name.rpartition('/')[0] or 'trace'}",
            name=member.name,
            source=member.name,
            turns=_turns(rows, rng_of(seed, member.name)),
        )


def _turns(rows: list[_Row], rng: Random) -> Iterator[Turn]:
    threads: list[_Thread] = []
    for row, following in zip(rows, [*rows[1:], None], strict=True):
        at_s = (row.timestamp - rows[0].timestamp) / 1e6
        until_s = (following.timestamp - row.timestamp) / 1e6 if following is not None else float("inf")
        thread = _thread_of(row, threads)
        response = {"role": "assistant", "content": row.output}
        lasts_s = min(answer_s(rng, row.output), until_s)
        turn = chat_turn(thread.history, response, at_s=at_s, lasts_s=lasts_s, thread=thread.name)
        thread.history.append(response)
        yield turn


def _thread_of(row: _Row, threads: list[_Thread]) -> _Thread:
    """The thread with the longest text that this request extends, grown by it; else a new one."""
    extended = [thread for thread in threads if thread.is_extended_by(row.input)]
    if extended:
        thread = max(extended, key=lambda thread: len(thread.text))
        thread.extend(row.input)
        return thread
    thread = _Thread(str(len(threads) + 1), row.input)
    threads.append(thread)
    return thread
