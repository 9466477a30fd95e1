"""What turns say, held: bounded, let go of whatever happens, and only to be read by who writes its span."""

import json

import pytest

from gateway.config.otel import OtelConfig
from gateway.domain.ids import RequestId
from gateway.domain.request import Protocol
from gateway.telemetry.contents import Content, Contents
from gateway.wire.said import Kind, Said
from gateway.wire.slices import finish

BODY = json.dumps({"messages": [{"role": "user", "content": "hi"}]}).encode()
R1, R2 = RequestId("r1"), RequestId("r2")


@pytest.fixture
def contents() -> Contents:
    return Contents(
        OtelConfig(endpoint="http://c", content=True, content_bytes=1024, content_max_bytes=1 << 20)
    )


def hold(contents: Contents, turn: RequestId = R1, body: bytes = BODY) -> Said | None:
    return contents.hold(turn, Protocol.CHAT, body, None)


def written(contents: Contents, content: Content) -> tuple[dict[str, str], bool]:
    found, _, is_cut = finish(contents.writing(content))
    return {name: value.decode() for name, value in found}, is_cut


def test_it_is_held_until_its_span_is_written(contents):
    said = hold(contents)
    assert said is not None and contents.bytes == len(BODY) + 1024
    said.add(1, Kind.TEXT, "hello")
    content = contents.ended(R1, "stop")
    assert content is not None and contents.ended(R1, "stop") is None and contents.bytes
    told, is_cut = written(contents, content)
    assert '"content":"hi"' in told["gen_ai.input.messages"] and '"hello"' in told["gen_ai.output.messages"]
    assert not is_cut
    contents.let_go(content)
    assert not contents.bytes


def test_a_turn_that_is_sent_again_is_held_once(contents):
    hold(contents)
    hold(contents)
    assert contents.bytes == len(BODY) + 1024
    contents.forget(R1)
    contents.forget(R1)
    assert not contents.bytes and contents.ended(R1, "stop") is None


def test_what_finds_no_room_is_left_out_and_counted(contents):
    assert hold(contents, R1, b"x" * (1 << 20)) is None
    assert (contents.bytes, contents.left_out) == (0, 1)
    assert hold(contents, R2) is not None


def test_who_is_told_anyway_is_told_once_and_for_all(contents):
    said = Said()
    assert contents.hold(R1, Protocol.CHAT, BODY, said) is said
    assert contents.bytes == len(BODY) + said.max_bytes
    assert contents.hold(R2, Protocol.CHAT, b"x" * (1 << 20), said) is said, "though there is no room"
    contents.forget(R1)
    assert not contents.bytes


def test_an_answer_that_was_too_long_is_cut(contents):
    said = hold(contents)
    assert said is not None
    said.add(1, Kind.TEXT, "x" * 2000)
    content = contents.ended(R1, "length")
    assert content is not None and written(contents, content)[1]


def test_a_body_that_cannot_be_read_is_not_told(contents):
    hold(contents, R1, b"\x1f\x8bno json")
    content = contents.ended(R1, "stop")
    assert content is not None
    assert written(contents, content) == ({}, True)
    contents.let_go(content)
