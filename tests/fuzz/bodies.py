"""Bodies of the four protocols, and what is made of them for an engine with the plugin."""

import contextlib
import gzip
import json
import random
import re
import zlib
from collections.abc import Callable
from typing import Any

import jiter
import msgspec
import orjson
import pydantic_core

from gateway.config.hints import HintsConfig
from gateway.config.http_limits import HttpLimits
from gateway.config.upstream import UpstreamConfig
from gateway.core.turn_records import GPU_WORK
from gateway.domain.fleet import Abilities
from gateway.domain.ids import PoolId, ReplicaId, TenantId, clean_name
from gateway.domain.request import Work
from gateway.requests.client_kv_fields import KV_FIELDS
from gateway.requests.facts import reading_body_facts
from gateway.server.auth.authenticator import Caller
from gateway.server.auth.client_keys import Tenant
from gateway.server.http.body_limits import BufferBudget
from gateway.server.http.request_parser import RequestParser
from gateway.server.proxy.prepare import refusal_of
from gateway.server.proxy.read_request import made_plain
from gateway.server.proxy.upstream_request import Outbound
from gateway.upstream.replica import Address, Replica
from gateway.wire.endpoints import classify
from gateway.wire.inflate import InflationError, zstd
from gateway.wire.slices import finish
from tests.fuzz.mutation import WORDS, mutate, spelt, value
from turnpike_vllm import hints
from turnpike_vllm.hints import Hint, Refusal

_PATHS = ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages", "/v1/embeddings")
_ENDPOINTS = {path: classify("POST", path) for path in _PATHS}
_TOP = (
    "model",
    "messages",
    "input",
    "tools",
    "system",
    "instructions",
    "stream",
    "store",
    "metadata",
    "vllm_xargs",
    "turnpike",
    "previous_response_id",
    "conversation",
    "prompt_cache_key",
    "session_id",
    "agent_hint",
    "cache_salt",
    "prompt",
    "background",
    *KV_FIELDS,
    "extra_body",
    "sampling_params",
)
_KEY = "k" * 64
_REPLICA = Replica(
    ReplicaId("a"), PoolId("p"), Address.parse("http://a:1"), config=UpstreamConfig(), api_key=None
)
_REPLICA.hint_key = _KEY
_ABILITIES = Abilities(engine="vllm", turnpike_hints=True)
_OUTBOUND = Outbound(HintsConfig(cache_salt_secret="salt" * 8), lambda _: _ABILITIES, are_keys_required=False)
_OURS = Hint(session="s-ours", seq=1).as_json()


def _forged(rng: random.Random) -> str:
    text = Hint(session="s-victim", seq=2**53, is_finished=True).as_json()
    return rng.choice(
        (text, hints.sign(text, "guessed"), f"{'0' * 64} {text}", hints.sign(_OURS, _KEY)[:64] + " " + text)
    )


def turn(rng: random.Random) -> dict[str, Any]:
    call = {
        "id": rng.choice(WORDS),
        "type": "function",
        "function": {"name": "f", "arguments": rng.choice(WORDS)},
    }
    return rng.choice(
        (
            {"role": "user", "content": rng.choice(WORDS)},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": rng.choice(WORDS), "content": rng.choice(WORDS)},
            {"type": "function_call_output", "call_id": rng.choice(WORDS), "output": value(rng, 1)},
            {
                "role": "user",
                "content": [{"type": "tool_result", "tool_use_id": "x", "content": value(rng, 1)}],
            },
            value(rng, 2),
        )
    )


def _member(rng: random.Random) -> tuple[str, Any]:
    field = rng.choice(_TOP)
    if field in ("messages", "input") and rng.randrange(6):
        return field, [turn(rng) for _ in range(rng.randrange(5))]
    if field == "vllm_xargs" and rng.randrange(6):
        return field, spelt(
            rng, [("turnpike", _forged(rng)), ("mine", 1), ("turnpike", _forged(rng))][rng.randrange(3) :]
        )
    if field in _HOLDERS and rng.randrange(3):
        return field, spelt(rng, [(rng.choice(KV_FIELDS), rng.choice(({"remote_host": "h"}, "h", None)))])
    if field in ("stream", "store", "background"):
        return field, rng.choice((True, False, 1, "true", None))
    return field, value(rng) if rng.randrange(2) else rng.choice(WORDS)


_CODINGS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "deflate": zlib.compress,
    "zstd": zstd.compress,
    "br": bytes,
}
_ENCODINGS = ("utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le", "utf-32-be")


def make(rng: random.Random) -> tuple[str, str, bytes]:
    body = spelt(rng, [_member(rng) for _ in range(rng.randrange(7))])
    match rng.randrange(12):
        case 0:
            body = body.decode("utf-8", "surrogatepass").encode(rng.choice(_ENCODINGS), "surrogatepass")
        case 1:
            body = b"[" * rng.randrange(3_000) + body
        case 2 | 3 | 4 | 5:
            body = mutate(rng, body)
        case _:
            pass
    if rng.randrange(8):
        return rng.choice(_PATHS), "", body
    coding = rng.choice(tuple(_CODINGS))
    at = rng.choice((0, 0, len(body) // 2))
    packed = b"".join(_CODINGS[coding](part) for part in (body[:at], body[at:]) if part)
    return rng.choice(_PATHS), coding, mutate(rng, packed) if rng.randrange(3) == 0 else packed


_READERS: dict[str, Callable[[bytes], Any]] = {
    "json": json.loads,
    "msgspec": msgspec.json.decode,
    "orjson": orjson.loads,
    "jiter": jiter.from_json,
    "pydantic": pydantic_core.from_json,
}


def check(given: tuple[str, str, bytes]) -> None:
    """Reading never raises, twice is once; what an engine reads is known, and salted; what goes out says what
    came in, and our fields, to every parser that reads it; no hint in it is followed but ours; of where
    KV caches are it says nothing unnoticed."""
    path, coding, body = given
    endpoint = _ENDPOINTS[path]
    fed = b"POST %s HTTP/1.1\r\nHost: a\r\nContent-Encoding: %s\r\nContent-Length: %d\r\n\r\n%s"
    fed %= (path.encode(), coding.encode(), len(body), body)
    parser = RequestParser(_WIDE, BufferBudget(1 << 20), lambda *_: Caller(_TENANT, path, endpoint))
    parser.hold(fed)
    request = parser.next_request()
    assert request is not None
    with contextlib.suppress(InflationError, UnicodeError):
        request = finish(made_plain(request, lambda _: None, is_spliced=True))
    body, fields = request.body, request.head.facts
    facts, again = (finish(reading_body_facts(endpoint, fields, body)) for _ in range(2))
    assert again.transcript == facts.transcript and again.echoed_ids == facts.echoed_ids
    if refusal_of(request, facts, are_keys_required=False, is_salted=True) is not None:
        assert fields.coding or not isinstance(_try(json.loads, body), dict)
        return
    chunks = _OUTBOUND.chunks(request, _REPLICA, hint=_OURS if facts.is_readable else None)
    sent = b"".join(bytes(each) for each in chunks).partition(b"\r\n\r\n")[2]
    is_turn, is_salted = endpoint.work is Work.GENERATE, endpoint.work in GPU_WORK
    if isinstance(said := _try(json.loads, body), dict):
        named = said.get("model")
        assert facts.is_readable
        assert not isinstance(named, str) or facts.model == clean_name(named) or _HALF.search(named)
        assert fields.coding or not is_salted or _try(json.loads, sent)["cache_salt"]
    if fields.coding or not is_salted:
        assert sent == body
    for reader, read in _READERS.items():
        got, came = _try(read, sent), _try(read, body)
        if sent != body:
            assert (got is _UNREAD) == (came is _UNREAD), reader
        if isinstance(came, dict):
            assert facts.moves_kv or not _names_kv(came), reader
        if isinstance(got, dict):
            is_strict = _try(msgspec.json.decode, body) is not _UNREAD
            _check_hint(got, is_ours=is_strict and is_turn and not fields.coding)
            if sent != body:
                _check_rest(reader, got, came)


_HALF = re.compile("[\ud800-\udfff]")
_TENANT = Tenant(TenantId("t"), False, may_move_kv=True)
_WIDE = HttpLimits(max_body_bytes=1 << 20, max_buffered_bytes=1 << 21)
_UNREAD: Any = object()


def _try(read: Callable[[bytes], Any], data: bytes) -> Any:
    try:
        return read(data)
    except (ValueError, RecursionError):
        return _UNREAD


_HOLDERS = ("vllm_xargs", "extra_body", "sampling_params")


def _names_kv(read: dict[str, Any]) -> bool:
    inner = [each for name in _HOLDERS if isinstance(each := read.get(name), dict)]
    inner += [each["extra_args"] for each in inner if isinstance(each.get("extra_args"), dict)]
    return any(each.get(name) is not None for each in (read, *inner) for name in KV_FIELDS)


def _check_hint(got: dict[str, Any], *, is_ours: bool) -> None:
    xargs = got.get("vllm_xargs")
    if not isinstance(xargs, dict) or "turnpike" not in xargs:
        return
    found = hints.parse_signed(xargs["turnpike"], _KEY)
    assert found in (Refusal.UNSIGNED, hints.parse(_OURS))
    if is_ours:
        assert found == hints.parse(_OURS), "a client's own stands where ours goes"


def _check_rest(reader: str, got: dict[str, Any], came: dict[str, Any]) -> None:
    ours = {"vllm_xargs", "cache_salt"}
    same = {key: each for key, each in got.items() if key not in ours}
    assert repr(same) == repr({key: each for key, each in came.items() if key not in ours}), reader
    theirs, now = came.get("vllm_xargs"), got.get("vllm_xargs")
    if isinstance(theirs, dict) and isinstance(now, dict):
        rest = {key: each for key, each in now.items() if key != "turnpike"}
        assert repr(rest) == repr({key: each for key, each in theirs.items() if key != "turnpike"}), reader
