"""Whatever a command prints or logs, a terminal obeys none of it."""

import io
import logging
import sys

from gateway.dashboard.terminal import LineFormatter, Printable


def test_a_stream_keeps_lines_and_escapes_the_rest():
    under = io.StringIO()
    print("a\x1b[31m", "b\tc", file=Printable(under))
    assert under.getvalue() == "a\\u001b[31m b\tc\n"
    assert Printable(under).isatty() is False


def test_a_log_message_is_one_line():
    formatter = LineFormatter("turnpike: %(message)s")
    record = logging.LogRecord(
        "x", logging.INFO, "f", 1, "model %s", ("m\nturnpike: listening\x1b[2J",), None
    )
    assert formatter.format(record) == "turnpike: info log: model m\\u000aturnpike: listening\\u001b[2J"


def test_a_trace_cannot_look_like_a_message():
    formatter = LineFormatter("turnpike: %(message)s")
    try:
        raise ValueError("x\nturnpike: all is well\x1b[2J")
    except ValueError:
        record = logging.LogRecord("x", logging.ERROR, "f", 1, "failed", (), sys.exc_info())
    first, *rest = formatter.format(record).split("\n")
    assert first == "turnpike: error log: failed" and len(rest) >= 3
    assert all(line.startswith("    ") and line.isprintable() for line in rest)
