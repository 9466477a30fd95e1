"""The gateway's own log: one line for each change of state, as text or as JSON.

Of refusals, which may be thousands a second, there is a line for each reason at most once in
`REFUSALS_EVERY_S`, with how many there were since the last one. What changes to and fro has a few lines, then
one in `CHANGES_EVERY_S`: its newest state, with how many changes that stands for.
"""

import asyncio
import json
import logging
from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from aiohttp.http_exceptions import HttpProcessingError

from gateway.domain.records import Record, ReplicaChanged

REFUSALS_EVERY_S: Final = 10.0
CHANGES_EVERY_S: Final = 10.0
_AT_ONCE: Final = 4
_log: Final = logging.getLogger("gateway")
_GRAVE: Final = ("down", "ejected", "failing")


def log_event(level: int, event: str, message: str = "", **fields: Any) -> None:
    """`message`: what a person reads instead of the fields, with these in it."""
    if _log.isEnabledFor(level):
        text = message or " ".join(f"{name}={_quoted(value)}" for name, value in fields.items())
        text = f"{logging.getLevelName(level).lower()} {event}{':' if message else ''} {text}"
        _log.log(level, "%s", text, extra={"event": event, "message_of": message, "fields": fields})


def _quoted(value: object) -> str:
    text = str(value)
    return text if text and not set(text) & set(' "=') else json.dumps(text, ensure_ascii=False)


def is_no_bad_request(record: logging.LogRecord) -> bool:
    """A filter: aiohttp logs a traceback for each request that it cannot parse."""
    return not (record.exc_info and isinstance(record.exc_info[1], HttpProcessingError))


class JsonFormatter(logging.Formatter):
    """One object a line: `time`, `level`, `event` (`log` for what is no change of state), and its fields."""

    def __init__(self, worker: int | None) -> None:
        super().__init__()
        self._beside = {} if worker is None else {"worker": worker}

    def format(self, record: logging.LogRecord) -> str:
        event, fields = getattr(record, "event", "log"), getattr(record, "fields", {})
        message = getattr(record, "message_of", None)
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "event": event,
            **self._beside,
        }
        if text := record.getMessage() if message is None else message:
            line["message"] = text
        if record.exc_info:
            line["trace"] = self.formatException(record.exc_info)
        return json.dumps({**fields, **line}, default=str)


class ChangeLog:
    """Of what may change to and fro."""

    def __init__(self) -> None:
        # Of each subject, how many changes there were since its window began, and the newest.
        self._lately: dict[str, tuple[int, int, str, dict[str, Any]]] = {}

    def log(self, of: str, level: int, event: str, **fields: Any) -> None:
        """`of`: what changes. To be called on a running loop."""
        count = self._lately[of][0] if of in self._lately else 0
        if not count:
            asyncio.get_running_loop().call_later(CHANGES_EVERY_S, self._log_newest, of)
        if count < _AT_ONCE:
            log_event(level, event, **fields)
        self._lately[of] = count + 1, level, event, fields

    def _log_newest(self, of: str) -> None:
        count, level, event, fields = self._lately.pop(of)
        if count > _AT_ONCE:
            self.log(of, level, event, **fields | {"count": count - _AT_ONCE})

    def log_replicas(self, records: Iterable[Record]) -> None:
        for record in records:
            if type(record) is ReplicaChanged:
                level = logging.WARNING if record.state in _GRAVE else logging.INFO
                name = record.replica
                self.log(name, level, f"replica_{record.state}", replica=name, cause=record.why)


class RefusalLog:
    def __init__(self, counts: Mapping[str, int]) -> None:
        """`counts`: of refusals so far, by reason; somebody else counts."""
        self._counts = counts
        self._logged: Counter[str] = Counter()
        self._logged_s: dict[str, float] = {}

    def log_new(self, *, now: float) -> None:
        """To be called about once a second."""
        for reason, count in tuple(self._counts.items()):
            if count > self._logged[reason] and now - self._logged_s.get(reason, -1e9) >= REFUSALS_EVERY_S:
                log_event(logging.WARNING, "refused", reason=reason, count=count - self._logged[reason])
                self._logged[reason], self._logged_s[reason] = count, now
