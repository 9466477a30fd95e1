"""What the `turnpike` command writes: nothing that a terminal obeys, and no line that pretends to be another.

Everything a command prints goes through `Printable`, so none can forget it; what is one line of a table is
made printable as a line by who prints it. Log lines are made printable by `LineFormatter`.
"""

import io
import logging
from typing import Any, Final, TextIO

from gateway.domain.printable import printable

_INDENT: Final = "    "


class Printable(io.TextIOBase):
    """A text stream that escapes what does not print; lines stay lines."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        return self._stream.write(printable(text, keep="\n\t"))

    def flush(self) -> None:
        self._stream.flush()

    def isatty(self) -> bool:
        return self._stream.isatty()

    def close(self) -> None:
        """The stream below is its owner's."""


class LineFormatter(logging.Formatter):
    """A message is one line, with its level and event (`log_lines.py`); the lines of a trace are indented, so
    none looks like a message."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        if not hasattr(record, "event"):
            record.message = f"{record.levelname.lower()} log: {record.message}"
        return printable(super().formatMessage(record))

    def formatException(self, ei: Any) -> str:  # noqa: N802 - logging's name
        text = printable(super().formatException(ei), keep="\n")
        return "\n".join(_INDENT + line for line in text.split("\n"))


def print_table(rows: list[tuple[str, ...]]) -> None:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(map(str.ljust, row, widths)).rstrip())
