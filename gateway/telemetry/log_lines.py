"""The gateway's own log: one line for each change of state, as text or as JSON.

Of refusals, which may be thousands a second, there is a line for each reason at most once in
`REFUSALS_EVERY_S`, with how many there were since the last one.
"""

import json
import logging
from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from gateway.domain.records import Record, ReplicaChanged

REFUSALS_EVERY_S: Final = 10.0
_log: Final = logging.getLogger("gateway")
_GRAVE: Final = ("down", "ejected")


def log_event(level: int, event: str, message: str = "", **fields: Any) -> None:
    """`message`: what a person reads instead, with the fields in it."""
    if _log.isEnabledFor(level):
        told = [f"{name}={_quoted(value)}" for name, value in fields.items()]
        text = message or " ".join([logging.getLevelName(level).lower(), event, *told])
        _log.log(level, "%s", text, extra={"event": event, "message_of": message, "fields": fields})


def _quoted(value: object) -> str:
    text = str(value)
    return text if text and not set(text) & set(' "=') else json.dumps(text, ensure_ascii=False)


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
        if said := record.getMessage() if message is None else message:
            line["message"] = said
        if record.exc_info:
            line["trace"] = self.formatException(record.exc_info)
        return json.dumps({**fields, **line}, default=str)


def log_changes(records: Iterable[Record]) -> None:
    for record in records:
        if type(record) is ReplicaChanged:
            level = logging.WARNING if record.state in _GRAVE else logging.INFO
            log_event(level, f"replica_{record.state}", replica=record.replica, cause=record.why)


class RefusalLog:
    def __init__(self, counts: Mapping[str, int]) -> None:
        """`counts`: of refusals so far, by reason; somebody else counts."""
        self._counts = counts
        self._told: Counter[str] = Counter()
        self._told_s: dict[str, float] = {}

    def tell(self, *, now: float) -> None:
        """To be called about once a second."""
        for reason, count in tuple(self._counts.items()):
            if count > self._told[reason] and now - self._told_s.get(reason, -1e9) >= REFUSALS_EVERY_S:
                log_event(logging.WARNING, "refused", reason=reason, count=count - self._told[reason])
                self._told[reason], self._told_s[reason] = count, now
