"""Requests to an OpenAI-compatible API, cut out of HTTP recordings such as a test suite's cassettes.

**Source**: any JSON lines with a `request` (the body) and, where known, `session` (the cassette or test; also
`cassette` or `test`), `seq`, `path` or `api` (`chat`, `responses`), `headers` or `user_agent`, `status`,
`response` (body, or the event stream as text), `resp_date` (an HTTP date), `processing_ms`. The lines of a
session stand together. crewAI's cassettes (MIT) in this shape are what it was made for.

**Taken**: every line is one exchange, bodies as recorded; the session is the cassette, and a line that names
none belongs to the session of its file. Streamed answers are put together. A chain of answers' dates is
believed where each is at most BELIEVED_S after the one before, because parts of a cassette may be from
different days.

**Composed**: a session's requests follow one another, in the order of its lines: what ran in parallel is
known no more. Missing times (`pacing`). The path, where only the protocol is known.

**Lost**: which agent of a crew asked: only its system prompt tells. Credentials in headers.
"""

from collections.abc import Iterable, Iterator, Mapping
from email.utils import parsedate_to_datetime
from itertools import groupby
from random import Random
from typing import Any, Final

import msgspec

from lab.workload.pacing import answer_s, gap_s
from lab.workload.problems import Problems
from lab.workload.records import Member, lines_as
from lab.workload.sessions import Session, Turn, rng_of
from lab.workload.streamed_answers import stream_events, whole_completion, whole_response

CLIENT: Final = "openai-http"
BELIEVED_S: Final = 120.0
_PATHS: Final = {
    "chat": "/v1/chat/completions",
    "responses": "/v1/responses",
    "completions": "/v1/completions",
}
_FIELDS: Final = {"messages": "chat", "input": "responses", "prompt": "completions"}
"""The field of a request that tells its protocol."""


class _Row(msgspec.Struct):
    request: dict[str, Any]
    session: str | None = None
    cassette: str | None = None
    test: str | None = None
    path: str | None = None
    api: str | None = None
    headers: dict[str, str] | None = None
    user_agent: str | None = None
    status: int | None = None
    response: Any = None
    resp_date: str | None = None
    processing_ms: float | str | None = None

    @property
    def name(self) -> str | None:
        return self.session or self.cassette or self.test

    @property
    def protocol(self) -> str | None:
        if self.api in _PATHS:
            return self.api
        return next((api for field, api in _FIELDS.items() if field in self.request), None)

    @property
    def lasted_s(self) -> float | None:
        try:
            return max(0.0, float(self.processing_ms) / 1000.0) if self.processing_ms is not None else None
        except ValueError:
            return None

    @property
    def answered_at_s(self) -> float | None:
        try:
            return parsedate_to_datetime(self.resp_date).timestamp() if self.resp_date else None
        except ValueError:
            return None


def openai_http(members: Iterable[Member], problems: Problems, seed: int) -> Iterator[Session]:
    for member in members:
        rows = _placed_rows(member, problems)
        for name, group in groupby(rows, key=lambda numbered: numbered[1].name or member.name):
            numbered = list(group)
            yield Session(
                client=CLIENT,
                name=name,
                source=f"{member.name}:{numbered[0][0]}",
                turns=_turns([row for _, row in numbered], rng_of(seed, name)),
            )


def _placed_rows(member: Member, problems: Problems) -> Iterator[tuple[int, _Row]]:
    """The rows whose path is known."""
    for number, row in lines_as(_Row, member, problems):
        if row.path is None and row.protocol is None:
            problems.add(f"{member.name}, line {number}", "neither a path nor a request of a known protocol")
            continue
        yield number, row


def _turns(rows: list[_Row], rng: Random) -> Iterator[Turn]:
    now_s, dated_from = 0.0, None
    for at, row in enumerate(rows):
        lasts_s = row.lasted_s if row.lasted_s is not None else answer_s(rng, row.response)
        answered, before = row.answered_at_s, rows[at - 1].answered_at_s if at else None
        if at and answered is not None and before is not None and 0 <= answered - before <= BELIEVED_S:
            # Dates are whole seconds, so a request may seem to start before the answer above it.
            assert dated_from is not None
            now_s = max(now_s, answered - dated_from - lasts_s)
        elif at:
            now_s += gap_s(rng, "tool")
        if answered is not None:
            dated_from = answered - (now_s + lasts_s)
        yield _turn(row, now_s, lasts_s)
        now_s += lasts_s


def _turn(row: _Row, at_s: float, lasts_s: float) -> Turn:
    status = row.status if row.status is not None else 200
    answer = _Answer() if status >= 400 else _answer(row)
    headers: Mapping[str, str] = row.headers or ({"User-Agent": row.user_agent} if row.user_agent else {})
    return Turn(
        at_s=at_s,
        lasts_s=lasts_s,
        path=row.path or _PATHS[row.protocol or "chat"],
        headers=headers,
        body=row.request,
        status=status,
        response=answer.response,
        finish=answer.finish,
        response_id=answer.id,
    )


class _Answer(msgspec.Struct):
    response: Any = None
    finish: str | None = None
    id: str | None = None


def _answer(row: _Row) -> _Answer:
    """What a whole answer comes to. Nothing where none was recorded."""
    body = row.response
    if row.protocol == "responses":
        return _response_answer(whole_response(stream_events(body)) if isinstance(body, str) else body)
    return _chat_answer(whole_completion(stream_events(body)) if isinstance(body, str) else body)


def _response_answer(body: Any) -> _Answer:
    if not isinstance(body, dict) or not isinstance(body.get("output"), list):
        return _Answer()
    output = body["output"]
    calls = any(isinstance(item, dict) and item.get("type") == "function_call" for item in output)
    finish = "tool_calls" if calls else "stop"
    return _Answer(output, finish if body.get("status") == "completed" else None, body.get("id"))


def _chat_answer(body: Any) -> _Answer:
    if not isinstance(body, dict) or not body.get("choices"):
        return _Answer()
    choice = body["choices"][0]
    response = choice.get("message") or {"role": "assistant", "content": choice.get("text")}
    return _Answer(response, choice.get("finish_reason"), body.get("id"))
