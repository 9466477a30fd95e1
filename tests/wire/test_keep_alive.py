"""Events that mean nothing, and events that end a stream that failed."""

import itertools
import json

import pytest

from gateway.domain.decision import Refusal, RefusalReason
from gateway.domain.request import Protocol
from gateway.errors import error_body
from gateway.wire.keep_alive import error_event, is_codex, keep_alive
from gateway.wire.sse import EventSplitter, event_data

PROTOCOLS = (Protocol.CHAT, Protocol.COMPLETIONS, Protocol.RESPONSES, Protocol.MESSAGES)


def events(data: bytes) -> list[bytes]:
    splitter = EventSplitter()
    found = [event_data(block) for block in splitter.feed(data)]
    assert splitter.is_between_events
    return found


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_what_follows_keep_alives_is_read_as_it_is_and_none_is_an_event_without_data(protocol):
    """Stainless's decoder for Go fails of such an event."""
    told = events(keep_alive(protocol) * 2 + b"data: {}\n\n")
    assert all(told) and told[-1] == b"{}"


def test_clients_get_what_they_count_and_bear():
    for protocol in (Protocol.CHAT, Protocol.COMPLETIONS, Protocol.RESPONSES):
        assert keep_alive(protocol) == b": keep-alive\n"
    assert json.loads(events(keep_alive(Protocol.RESPONSES, is_codex=True))[0]) == {"type": "keepalive"}
    assert json.loads(events(keep_alive(Protocol.MESSAGES))[0]) == {"type": "ping"}


def test_a_backends_error_becomes_an_event():
    body = b'{"error":{"message":"too long","type":"BadRequestError","param":"x","code":400}}'
    told, done = events(error_event(Protocol.CHAT, 400, body))
    assert json.loads(told) == json.loads(body) and done == b"[DONE]"
    (told,) = events(error_event(Protocol.RESPONSES, 400, body))
    assert json.loads(told)["type"] == "error" and json.loads(told)["message"] == "too long"
    assert json.loads(told)["code"] == "400" and json.loads(told)["param"] == "x"


def test_an_error_without_a_layer_around_it():
    told, _ = events(error_event(Protocol.CHAT, 400, b'{"object":"error","message":"no","code":400}'))
    assert json.loads(told)["error"]["message"] == "no"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"error":{"message":"no","took":NaN,"left":-Infinity,"far":1e999}}', "no"),
        (rb'{"error":{"message":"half \ud83d","code":500}}', "half ?"),
        (b'{"error":{"message":"cut \xf0\x9f"},"choices":[NaN]}', "cut \ufffd"),
        (b'\xef\xbb\xbf{"object":"error","message":"no"}', "no"),
        ('{"error":{"message":"no"}}'.encode("utf-16"), "no"),
    ],
)
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_an_error_that_is_no_strict_json_keeps_its_message(protocol, body, message):
    told = json.loads(events(error_event(protocol, 502, body))[0].decode(), parse_constant=pytest.fail)
    assert told["error"]["message"] == message


DEEP = [b'{"error":{"message":"m","x":' + b"[" * n + b"]" * n + b"}}" for n in (900, 990, 100_000)]
BARE = [b'{"message":"m","x":' + b"[" * n + b"]" * n + b"}" for n in range(940, 1010)]


@pytest.mark.parametrize(
    "name", [b"Originator", b"thread-id", b"X-Codex-Turn-Metadata", b"User-Agent"], ids=bytes.decode
)
def test_codex_is_known_by_what_it_alone_sends(name):
    assert is_codex([(b"Accept", b"*/*"), (name, b"Codex_cli_rs/1")])
    assert not is_codex([(b"Session-Id", b"a"), (b"User-Agent", b"OpenAI/Python")])


def test_an_error_may_be_nested_however_deeply():
    for body, protocol in itertools.product(DEEP + BARE, PROTOCOLS):
        assert b"message" in error_event(protocol, 400, body)


@pytest.mark.parametrize("body", [b"", b"<html>\xff", b"[]", b'{"error":"x"}', b'{"error":{"message":1}}'])
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_whatever_came_is_told(protocol, body):
    told = events(error_event(protocol, 502, body))[0]
    error = json.loads(told)["error"]
    assert isinstance(error["message"], str) and error["message"]


def test_a_refusal_keeps_its_shape():
    refusal = Refusal(reason=RefusalReason.QUEUE_TIMEOUT, message="busy", retry_after_s=3)
    body = error_body(Protocol.MESSAGES, refusal)
    (told,) = events(error_event(Protocol.MESSAGES, 503, body))
    assert json.loads(told) == json.loads(body)
