"""What answers took that nobody reads: however large they are, and wherever they are cut."""

import gzip
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.request import Protocol, Usage, Work
from gateway.wire.inflate import zstd
from gateway.wire.observer import observe

NUMBERS = [{"index": 0, "embedding": [0.015625] * 300_000}]
DETAILS: dict[str, Any] = {"prompt_tokens_details": {"cached_tokens": 4}, "completion_tokens": 0}
FORGED = [{"document": {"text": '"usage": {"prompt_tokens": 1}, \\" "usage":{"prompt_tokens":2}'}}] * 200
ECHOED: Any = [{"index": 0, "document": {"usage": {"prompt_tokens": 1}, "text": "}}}"}}] * 200
ANSWERS: list[Any] = [
    ({"data": NUMBERS, "usage": {"prompt_tokens": 9, "total_tokens": 9} | DETAILS}, 9, 4, 0),
    ({"id": "r", "usage": {"prompt_tokens": 7, "total_tokens": 7}, "results": FORGED}, 7, None, 0),
    ({"results": FORGED, "usage": {"prompt_tokens": 6}}, 6, None, 0),
    ({"embeddings": {}, "meta": {"billed_units": {"input_tokens": 5}}}, 5, None, 0),
    ({"usage": {"input_tokens": 3, "output_tokens": 2}, "answers": []}, 3, None, 2),
    ({"usage": {"total_tokens": 8}, "results": FORGED}, 8, None, 0),
    ({"usage": {"total_tokens": 8}, "results": ECHOED}, 8, None, 0),
    ({"results": ECHOED, "usage": {"total_tokens": 8}}, 8, None, 0),
    ({"results": ECHOED}, None, None, None),
    ({"usage": {"prompt_tokens": "many"}}, None, None, None),
    ({"data": NUMBERS, "usage": None}, None, None, None),
    ({"usage": {"prompt_tokens": -5}}, None, None, None),
]


def usage_of(body: bytes, size: int, coding: str | None = None, status: int = 200) -> Usage:
    observer = observe(Protocol.OTHER, Work.POOL, "application/json", coding)
    for at in range(0, len(body), size):
        observer.feed(body[at : at + size])
    while observer.is_behind:
        observer.feed(b"")
    return observer.answer(status, is_over=True).usage


@pytest.mark.parametrize(("answer", "prompt", "cached", "output"), ANSWERS)
@pytest.mark.parametrize(
    ("coding", "pack"), [(None, bytes), ("gzip", gzip.compress), ("zstd", zstd.compress)]
)
def test_it_is_found(answer, prompt, cached, output, coding, pack):
    expected = Usage(prompt_tokens=prompt, cached_tokens=cached, output_tokens=output)
    for indent in (None, 1):
        body = pack(json.dumps(answer, indent=indent).encode())
        assert usage_of(body, 65_536, coding) == usage_of(body, 1 << 24, coding) == expected
        assert usage_of(body, 65_536, coding, status=400) == Usage()


def test_of_an_answer_that_is_too_much_to_be_read_usage_is_found_in_its_middle():
    dense = {"choices": [{"index": 0, "message": {"content": "word " * 2_000}}], "usage": COUNTED["usage"]}
    body = json.dumps(dense | {"prompt_logprobs": [{"1": {"rank": 1}}] * 100_000}).encode()
    observer = observe(Protocol.CHAT, Work.GENERATE, "application/json", None)
    observer.feed(body)
    answer = observer.answer(200, is_over=True)
    assert answer.usage == Usage(prompt_tokens=9, output_tokens=8)
    assert not answer.said_bytes, "bytes count where nothing else does"


def test_a_usage_that_cannot_be_is_none():
    for count in (-350, 2**70):
        observer = observe(Protocol.CHAT, Work.GENERATE, "application/json", None)
        observer.feed(json.dumps({"choices": [], "usage": {"prompt_tokens": count}}).encode())
        assert observer.answer(200, is_over=True).usage == Usage()


COHERE: Any = {"message": {"content": [{"type": "text", "text": "word " * 9_000}]}}
TAKEN: Any = {
    "usage": {"billed_units": {"input_tokens": 1}, "tokens": {"input_tokens": 9, "output_tokens": 8}}
}
LONG: Any = {"choices": [{"message": {"content": "a", "x": [0] * 300_000}}]}
COUNTED: Any = {"usage": {"prompt_tokens": 9, "completion_tokens": 8}}
JSON, STREAM = "application/json", "text/event-stream"


@pytest.mark.parametrize(
    ("protocol", "content_type", "parts", "is_counted"),
    [
        (Protocol.OTHER, JSON, [json.dumps(COHERE | TAKEN)], True),
        (Protocol.OTHER, JSON, [json.dumps(COHERE)], False),
        (Protocol.OTHER, STREAM, [f"data: {json.dumps(each)}\n\n" for each in (COHERE, TAKEN)], True),
        (Protocol.OTHER, STREAM, [f"data: {json.dumps(COHERE)}\n\n"] * 9, False),
        (Protocol.OTHER, "application/cbor", ["word " * 9_000], False),
        (Protocol.CHAT, JSON, [json.dumps(LONG | COUNTED)], True),  # too many values to be read
        (Protocol.CHAT, JSON, [json.dumps(LONG)], False),
        (Protocol.CHAT, JSON, [json.dumps(COHERE)[:9_000]], False),  # its client left meanwhile
        (Protocol.CHAT, "application/cbor", ["word " * 9_000], False),
    ],
)
@pytest.mark.parametrize("coding", [None, "gzip"])
def test_what_a_model_wrote_counts_also_where_it_is_not_read(
    protocol, content_type, parts, is_counted, coding
):
    body = "".join(parts).encode()
    observer = observe(protocol, Work.GENERATE, content_type, coding)
    observer.feed(body if coding is None else gzip.compress(body))
    while observer.is_behind:
        observer.feed(b"")
    answer = observer.answer(200)
    assert answer.usage == (Usage(prompt_tokens=9, output_tokens=8) if is_counted else Usage())
    assert is_counted or answer.said_bytes == len(body)


def test_vllm_says_beside_bytes_what_they_took():
    head = b'HTTP/1.1 200 OK\r\nMetadata: {"data": [], "usage": {"prompt_tokens": 7}}\r\nx: "usage": {}\r\n'
    observer = observe(Protocol.OTHER, Work.POOL, "application/octet-stream", None, head=head)
    observer.feed(bytes(9_000))
    assert observer.answer(200).usage == Usage(prompt_tokens=7, output_tokens=0)


@given(st.integers(1, 5000), st.sampled_from(ANSWERS[1:6]))
def test_wherever_it_is_cut(size, case):
    answer, prompt, *_ = case
    assert usage_of(json.dumps(answer).encode(), size).prompt_tokens == prompt


@given(st.binary(max_size=300), st.sampled_from((None, "gzip", "br")))
def test_what_is_no_answer_says_nothing_and_fails_nothing(body, coding):
    assert usage_of(body, 7, coding) == Usage()


def test_little_is_kept_and_time_is_linear_in_braces():
    body = b'"usage":{' * 500_000
    assert usage_of(body, 1000) == usage_of(b'{"usage":{"a":{' + b"{}" * 10**6, 65_536) == Usage()
