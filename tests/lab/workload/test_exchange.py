"""An exchange's line: what it may say, and that it comes back as it was."""

import msgspec
import pytest

from lab.workload.exchange import Exchange, Truth, read_exchange, without_secrets, write_exchange

LEAST = b'{"t": 1.0, "path": "/v1/models", "truth": {"client": "c", "session": "s"}}'


def test_the_least_line_has_defaults():
    exchange = read_exchange(LEAST)
    assert (exchange.method, exchange.status, exchange.headers, exchange.t_end) == ("POST", 200, {}, None)
    assert exchange.truth == Truth(client="c", session="s")


def test_a_line_comes_back_as_it_was():
    exchange = Exchange(
        t=1.5,
        t_first_byte=1.6,
        t_end=2.0,
        path="/v1/chat/completions",
        headers=[("A", "1"), ("A", "2")],
        body={"messages": []},
        response={"role": "assistant", "content": "ü"},
        truth=Truth(client="c", session="s", thread="t", source="f:1"),
    )
    line = write_exchange(exchange)
    assert line.endswith(b"}\n")
    assert line.count(b"\n") == 1
    assert read_exchange(line) == exchange


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        (b"{", "truncated"),
        (b'{"path": "/", "truth": {"client": "c", "session": "s"}}', "missing required field `t`"),
        (b'{"t": 0, "path": "/"}', "missing required field `truth`"),
        (
            b'{"t": 0, "path": "/", "truth": {"client": "c"}}',
            r"missing required field `session` - at `\$.truth`",
        ),
        (LEAST.replace(b'"t": 1.0', b'"t": 1.0, "t_end": 0.5'), "t_end 0.5 is before t 1.0"),
        (LEAST.replace(b"/v1", b"v1"), "'v1/models' does not begin with a slash"),
    ],
)
def test_what_is_wrong_is_said(line, complaint):
    with pytest.raises((ValueError, msgspec.DecodeError), match=complaint):
        read_exchange(line)


def test_credentials_are_replaced_in_either_form_of_headers():
    assert without_secrets({"Authorization": "Bearer x", "Accept": "*/*"}) == {
        "Authorization": "<redacted>",
        "Accept": "*/*",
    }
    assert without_secrets([("X-API-Key", "x"), ("a", "b")]) == [("X-API-Key", "<redacted>"), ("a", "b")]
