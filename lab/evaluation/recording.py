"""Recorded exchanges: one JSON line each, in order of arrival; plain, `.gz` or `.xz`.

Fields: `t`, `t_first_byte`, `t_end` (seconds) · `method`, `path`, `headers`, `body` · `status`, `response`
(the assistant message, the `output` list or the content blocks), `finish`, `response_id` · `cut_after`,
`client_disconnected` · `truth` {`client`, `run`, `session`, `thread`}.

Invariant: `truth` is read by the metrics alone.
"""

import gzip
import lzma
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from gateway.domain.request import Answer, Protocol, Work
from gateway.identity.explicit_ids import IDENTITY_BODY_FIELDS, IDENTITY_HEADERS
from gateway.responses.content import ResponseContent
from gateway.responses.observer import observe
from gateway.wire.endpoints import Endpoint, classify
from gateway.wire.headers import RawHeaders


class Truth(msgspec.Struct):
    client: str
    session: str
    thread: str | None = None
    run: str | None = None


class Exchange(msgspec.Struct):
    """One recorded line."""

    t: float
    method: str
    path: str
    truth: Truth
    t_first_byte: float | None = None
    t_end: float | None = None
    headers: Any = None
    body: Any = None
    status: int = 200
    response: Any = None
    finish: str | None = None
    response_id: str | None = None
    fault: Any = None
    cut_after: Any = None
    client_disconnected: bool | None = None

    @property
    def endpoint(self) -> Endpoint:
        return classify(self.method, self.path.partition("?")[0])

    @property
    def is_turn(self) -> bool:
        return self.endpoint.work is Work.GENERATE

    @property
    def is_broken(self) -> bool:
        """The client did not get a whole good answer."""
        return self.status == 0 or self.status >= 400 or bool(self.cut_after) or self.has_left_early

    @property
    def has_left_early(self) -> bool:
        """It gave up on an answer that was held up, not on one that it had in hand."""
        held_s = self.fault.get("s") if isinstance(self.fault, dict) else None
        lasted_s = (self.t_end or self.t) - self.t
        is_held = isinstance(held_s, int | float) and lasted_s < held_s
        return bool(self.client_disconnected) and (is_held or self.response is None)

    @property
    def retry_after_s(self) -> float | None:
        """What the answer's `Retry-After` said."""
        value = self.fault.get("retry_after") if isinstance(self.fault, dict) else None
        return float(value) if isinstance(value, int | float) else None

    def header_lines(self, *, without_ids: bool) -> RawHeaders:
        pairs: Iterable[Sequence[Any]] = (
            self.headers.items() if isinstance(self.headers, dict) else self.headers or ()
        )
        lines = [(str(pair[0]).lower().encode(), str(pair[1]).encode()) for pair in pairs]
        return [line for line in lines if not (without_ids and line[0] in IDENTITY_HEADERS)]

    def body_bytes(self, *, without_ids: bool) -> bytes:
        body = self.body
        if isinstance(body, str):
            return body.encode()
        if isinstance(body, dict) and without_ids:
            body = {name: value for name, value in body.items() if name not in IDENTITY_BODY_FIELDS}
        return msgspec.json.encode(body) if body is not None else b""

    def answer(self, said: ResponseContent | None = None) -> Answer:
        """What the gateway would have seen of the recorded answer. `said`: told what that says."""
        endpoint = self.endpoint
        if self.status >= 400 or (self.response is None and self.response_id is None):
            return Answer(status=self.status or 502, retry_after_s=self.retry_after_s)
        observer = observe(endpoint.protocol, endpoint.work, "application/json", None, content=said)
        observer.feed(msgspec.json.encode(_ANSWERS[endpoint.protocol](self)))
        answer = observer.answer(self.status or 200)
        return msgspec.structs.replace(answer, has_terminal=not self.is_broken)


def _chat(exchange: Exchange) -> dict[str, Any]:
    choice = {"index": 0, "message": exchange.response, "finish_reason": exchange.finish}
    return {"id": exchange.response_id, "choices": [choice]}


def _responses(exchange: Exchange) -> dict[str, Any]:
    status = "completed" if exchange.finish else "incomplete"
    return {"id": exchange.response_id, "status": status, "output": exchange.response}


def _messages(exchange: Exchange) -> dict[str, Any]:
    return {"type": "message", "content": exchange.response, "stop_reason": exchange.finish}


_ANSWERS: Final = {
    Protocol.CHAT: _chat,
    Protocol.COMPLETIONS: _chat,
    Protocol.RESPONSES: _responses,
    Protocol.MESSAGES: _messages,
    Protocol.OTHER: _chat,
}
_LINE: Final = msgspec.json.Decoder(Exchange)


def read_recording(path: Path) -> list[Exchange]:
    """The exchanges of one file, in order of arrival. Raises ValueError that names the line."""
    exchanges = []
    for number, line in enumerate(_lines(path), start=1):
        if not line.strip():
            continue
        try:
            exchanges.append(_LINE.decode(line))
        except msgspec.MsgspecError as error:
            raise ValueError(f"{path}, line {number}: {error}") from error
    return sorted(exchanges, key=lambda exchange: exchange.t)


def _lines(path: Path) -> Iterator[bytes]:
    if path.suffix == ".xz":
        with lzma.open(path) as file:
            yield from file
    elif path.suffix == ".gz":
        with gzip.open(path) as file:
            yield from file
    else:
        with path.open("rb") as file:
            yield from file
