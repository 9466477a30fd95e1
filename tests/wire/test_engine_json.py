"""What Python's json reads, a strict reader reads in the copy, and it says the same."""

import contextlib
import itertools
import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.request import Work
from gateway.requests.facts import read_facts
from gateway.wire import engine_json as module
from gateway.wire.body import Oversized
from gateway.wire.endpoints import classify
from gateway.wire.engine_json import in_utf8, strict_copy
from gateway.wire.slices import finish
from tests.server.test_unread_bodies import ENCODINGS, bodies

PATHS = ("/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses", "/v1/embeddings")


@given(bodies(), st.sampled_from(PATHS))
def test_whatever_an_engine_reads_is_read(given_body, path):
    body, _ = given_body
    facts, said = read_facts(classify("POST", path), [], body), json.loads(body)
    assert facts.is_readable and facts.model == said["model"]
    if facts.work is Work.GENERATE and path != "/v1/responses":
        assert facts.message_count == 1
        assert facts.explicit is None or facts.explicit.session == said["session_id"]


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_it_does_not_matter_where_a_piece_ends(monkeypatch, encoding):
    told = "x" * 50
    text = '{"a":["\\ud83d\\ude00\\ud83d", NaN, -Infinity], "b\\"":"NaN ' + told + '😀\ud83d", "c":Infinity}'
    body = text.encode(encoding, "surrogatepass")
    for size in range(16, 40, 4):
        monkeypatch.setattr(module, "_PIECE_BYTES", size)
        copy = finish(strict_copy(body))
        assert len(copy) == len(finish(in_utf8(body)))
        assert json.loads(copy) == {"a": ["😀\ufffd", 0, 0], 'b"': f"NaN {told}😀\ufffd", "c": 0}


@pytest.mark.parametrize(
    "body", [b'{"a":None}', b'{"a":"\\ud83"}', b'{"a":Infinite}', b'"\xed"', b'["NaN', b"N"]
)
def test_what_nobody_reads_stays_unread(body):
    facts = read_facts(classify("POST", "/v1/chat/completions"), [], body)
    assert not facts.is_readable and not facts.is_hidden


@pytest.mark.parametrize(
    "body",
    [
        b'{"model":"m","a":[%s1]}' % (b"NaN," * 2**17),
        b'{"model":"m","a":"%s"}' % (b"\\ud83d" * 2**17),
        b'{"model":"m","a":%s}' % (b"[" * 2**17 + b"]" * 2**17),
        b'{"model":"m","a":NaN,"b":"%s"}' % (b"x" * module.MAX_BYTES),
    ],
    ids=["numbers", "halves", "nesting", "size"],
)
def test_the_work_is_bounded_and_in_slices(body):
    times = [time.thread_time()]
    with contextlib.suppress(Oversized):
        times.extend(time.thread_time() for _ in strict_copy(body, is_deep=True))
    slowest_s = max((after - before for before, after in itertools.pairwise(times)), default=0.0)
    facts = read_facts(classify("POST", "/v1/chat/completions"), [], body)
    assert slowest_s < 0.05 and facts.is_hidden and facts.is_oversized and not facts.is_readable
