"""Fields of a request with the places of KV caches, for an engine.

With a connector they name hosts, ports and blocks, so their sender can make an engine connect to any address,
or read another tenant's cache. The gateway sends them itself (`gateway/requests/kv_transfer.py`); a client's
are accepted from trusted tenants alone (`gateway/server/proxy/handler.py`).

Where they stand: at the top of a body; in `vllm_xargs`, whose names vLLM's connectors read like the fields'
(`SamplingParams.extra_args`); in `sampling_params`, and its `extra_args`, of vLLM's `/inference/v1/generate`;
and in `extra_body`, which other gateways unpack. Elsewhere their names are content of a conversation.

A body that is read is judged by its fields, so names spelt with escapes are found, and bodies without any of
them cost nothing. Of two fields of one name the last counts, here and in the engines that we know; a null is
believed only where the name stands once, as that costs only its sender. Of an unread body the bytes are
searched; it may be UTF-16 or UTF-32, which engines read.
"""

import re
from collections.abc import Generator
from operator import attrgetter
from typing import Final

from gateway.wire.body import ABSENT, RequestBody

KV_FIELDS: Final = (
    "kv_transfer_params",  # vLLM: prefill and decode apart, tiers
    "ec_transfer_params",  # vLLM: the same of encoders' caches
    "kv_hints",  # vLLM: what to keep, and to fetch
    "bootstrap_host",  # SGLang: where the engine that computes the prompt listens
    "bootstrap_port",
    "bootstrap_room",
    "disaggregated_params",  # TensorRT-LLM
)
_CONTAINERS: Final = ("vllm_xargs", "extra_body", "sampling_params")
NOTICED: Final = attrgetter(*KV_FIELDS, *_CONTAINERS)
NOTHING_NOTICED: Final = (ABSENT,) * (len(KV_FIELDS) + len(_CONTAINERS))
_QUOTED: Final = {name: b'"%s"' % name.encode() for name in KV_FIELDS}
_ESCAPES: Final = b"\\u00"
# A lower-case letter, or an underscore. No encoder writes them so.
_ESCAPED: Final = re.compile(rb"\\u00(?:5[fF]|6[1-9a-fA-F]|7[0-9aA])")
# One that is escaped itself, so that it escapes nothing.
_BACKSLASH: Final = b"\\\\"
_IN_FORMS: Final = b"_transfer_params"
_PIECE_BYTES: Final = 2**20
# More than any name has in UTF-32.
_OVERLAP_BYTES: Final = 256


def has_kv_fields(body: RequestBody, plain: bytes) -> bool:
    """`body`: read from the bytes `plain`, with at least one of the `NOTICED` fields."""
    return _has_field(body, plain) or any(_may_name(bytes(getattr(body, name))) for name in _CONTAINERS)


def _has_field(body: RequestBody, plain: bytes) -> bool:
    values = [(name, value) for name in KV_FIELDS if (value := getattr(body, name)) is not ABSENT]
    return any(
        bytes(value) != b"null" or plain.count(_QUOTED[name]) != 1 or _is_escaped(plain)
        for name, value in values
    )


def may_have_kv_fields(data: bytes) -> Generator[None, None, bool]:
    for start in range(0, len(data), _PIECE_BYTES):
        if _may_name(data[start : start + _PIECE_BYTES + _OVERLAP_BYTES]):
            return True
        yield
    return False


def form_may_have_kv_fields(data: bytes) -> bool:
    return _IN_FORMS in data or _is_escaped(data)


def _may_name(piece: bytes) -> bool:
    if b"\0" in piece:
        piece = piece.replace(b"\0", b"")
    return any(_QUOTED[name] in piece for name in KV_FIELDS) or _is_escaped(piece)


def _is_escaped(data: bytes) -> bool:
    return _ESCAPES in data and _ESCAPED.search(data.replace(_BACKSLASH, b"")) is not None
