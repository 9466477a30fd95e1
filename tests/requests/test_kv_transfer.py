"""What the two legs of a request are told, by connector."""

import json
from typing import Any

import pytest

from gateway.domain.request import Protocol
from gateway.requests.kv_transfer import CONNECTORS, prefill_leg_body
from gateway.wire.splice import splice_fields

BODY = b'{"model":"m","messages":[{"role":"user","content":"\\u00e9"}],"stream":true,"max_tokens":99}'
PROMPT = {"model": "m", "messages": [{"role": "user", "content": "é"}], "stream": False, "max_tokens": 1}
WHERE = {"do_remote_prefill": True, "remote_block_ids": [[1, 2]], "remote_engine_id": "e", "tp_size": 1}
CHAT = Protocol.CHAT
STORE, NIXL = CONNECTORS["shared_storage"], CONNECTORS["nixl"]


def said(body: bytes | None) -> Any:
    assert body is not None
    return json.loads(body)


def test_engines_that_share_a_store_are_told_nothing():
    assert said(prefill_leg_body(STORE, BODY, CHAT)) == PROMPT
    assert STORE.decode_fields(b'{"kv_transfer_params":{"do_remote_prefill":true}}') == {}
    assert STORE.lease_s == float("inf")


def test_nixl_holds_the_blocks_and_says_where_they_are():
    asked = said(prefill_leg_body(NIXL, BODY, CHAT))
    params = asked.pop("kv_transfer_params")
    assert asked == PROMPT
    assert params == {
        "do_remote_decode": True,
        "do_remote_prefill": False,
        "remote_engine_id": None,
        "remote_block_ids": None,
        "remote_host": None,
        "remote_port": None,
    }
    answer = json.dumps({"choices": [], "kv_transfer_params": WHERE}).encode()
    fields = NIXL.decode_fields(answer)
    assert fields is not None
    sent = b"".join(splice_fields(BODY, fields))
    assert sent.startswith(BODY[:-1]) and json.loads(sent)["kv_transfer_params"] == WHERE
    assert NIXL.lease_s < 30, "as long as an engine keeps them"


@pytest.mark.parametrize(
    "answer", [b"", b"[]", b"{}", b'{"kv_transfer_params":null}', b'{"kv_transfer_params":"x"}', b"\xff"]
)
def test_nixl_without_blocks_hands_nothing_over(answer):
    assert NIXL.decode_fields(answer) is None


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"\xff", b'{"kv_transfer_params":{"do_remote_decode":true},"messages":[]}']
)
def test_what_cannot_be_read_or_transfers_by_itself_has_no_prefill_leg(body):
    assert prefill_leg_body(STORE, body, CHAT) is None and prefill_leg_body(NIXL, body, CHAT) is None


def test_a_null_says_nothing():
    body = b'{"kv_transfer_params":null,"prompt":"p"}'
    assert said(prefill_leg_body(NIXL, body, CHAT))["kv_transfer_params"]["do_remote_decode"] is True
