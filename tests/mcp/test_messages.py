import msgspec
import pytest

from gateway.mcp.messages import (
    MAX_READ_BYTES,
    UNREAD,
    Kind,
    Message,
    cancelled_answer,
    cancelled_request,
    read_message,
)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b'{"method":"ping","id":1}', Message(Kind.REQUEST, "ping", 1)),
        (b'{"id":"1","method":"x","params":{"a":1 }}', Message(Kind.REQUEST, "x", "1", b'{"a":1 }')),
        (b'{"method":"notifications/initialized"}', Message(Kind.NOTIFICATION, "notifications/initialized")),
        (b'{"id":1,"result":{"a":[]}}', Message(Kind.ANSWER, "", 1, result=b'{"a":[]}')),
        (b'{"id":1,"error":{"code":1}}', Message(Kind.ANSWER, "", 1)),
        (b'{"id":null,"error":{}}', Message(Kind.ANSWER)),
    ],
)
def test_a_message_is_read(data, expected):
    assert read_message(data) == expected


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"[]",
        b'[{"method":"ping","id":1}]',
        b"{}",
        b'{"jsonrpc":"2.0"}',
        b'{"method":1,"id":1}',
        b'{"method":"x","id":1.5}',
        b'{"method":"x","id":true}',
        b'{"method":"\xff","id":1}',
        b'{"result":{}}',
        b'{"params":' + b"[" * 10_000 + b"]" * 10_000 + b',"method":"x"}',
        b'{"method":"ping","id":1,"params":"%s"}' % (b"x" * MAX_READ_BYTES),
    ],
)
def test_what_cannot_be_read_may_be_a_call(data):
    message = read_message(data)
    assert message == UNREAD and message.may_call and not message.may_repeat


def test_only_what_asks_and_changes_nothing_may_be_sent_twice():
    def repeats(method):
        return read_message(b'{"method":"%s","id":1}' % method).may_repeat

    assert repeats(b"ping") and repeats(b"tools/list")
    assert not repeats(b"tools/call") and not repeats(b"initialize") and not repeats(b"x/unknown")
    assert not read_message(b'{"method":"ping"}').may_repeat


def test_a_call_is_a_request_of_that_method():
    assert read_message(b'{"method":"tools/call","id":1}').may_call
    assert not read_message(b'{"method":"tools/call"}').may_call
    assert not read_message(b'{"method":"tools/list","id":1}').may_call


def test_a_client_says_which_request_it_cancels():
    def cancelled(params, more=""):
        body = f'{{"method":"notifications/cancelled"{more},"params":{params}}}'
        return cancelled_request(read_message(body.encode()))

    assert cancelled('{"requestId":"a"}') == "a" and cancelled('{"requestId":7,"reason":"x"}') == 7
    assert cancelled("{}") is None and cancelled("[]") is None
    assert cancelled('{"requestId":7}', ',"id":1') is None, "a request is no notification"
    assert cancelled_request(read_message(b'{"method":"x","params":{"requestId":7}}')) is None
    assert msgspec.json.decode(cancelled_answer("a"))["id"] == "a"
