"""The transfer of a prompt's KV cache from the prefilling engine to the decoding one.

A request has two legs: the *prefill leg* computes the prompt and one token at one engine, the *decode leg* is
the client's request at another. The extra fields of each depend on the engines' KV connector.

`shared_storage`: the engines share a store, which finds a prompt by its tokens (vLLM's `ExampleConnector`).
No extra fields.
`nixl`: the prefill leg orders its engine to hold the blocks; their place in its answer goes into the decode
leg, whose engine fetches them (vLLM's `NixlConnector`).
"""

from collections.abc import Mapping
from typing import Final, Literal

import msgspec
from msgspec import Raw

from gateway.domain.request import Protocol
from gateway.requests.prefill import for_one_token, needs_more_than_its_prompt
from gateway.wire.body import read_as

TransferName = Literal["shared_storage", "nixl"]

_PARAMS: Final = "kv_transfer_params"
_HOLD: Final = Raw(
    b'{"do_remote_decode":true,"do_remote_prefill":false,"remote_engine_id":null,'
    b'"remote_block_ids":null,"remote_host":null,"remote_port":null}'
)
# A producer drops its blocks after 30 s, unless a consumer reserves them within that time.
_NIXL_LEASE_S: Final = 20.0
_body: Final = msgspec.json.Decoder(dict[str, Raw])


class Connector(msgspec.Struct):
    """By default, of engines that share a store."""

    lease_s: float = float("inf")
    """How long after its end the prefill leg's cache may be fetched."""
    counts_fetched: bool = True
    """Fetched tokens count as cached in the answer's usage; otherwise that has the prefilling engine's cached
    tokens (vLLM's `remote_prefill_cached_tokens`)."""
    prefill_fields: Mapping[str, Raw] = {}
    """Of the prefill leg, beside its prompt; empty if its answer hands nothing over."""

    def decode_fields(self, answer: bytes) -> dict[str, Raw] | None:
        """Of the decode leg. `answer`: the prefill leg's. None if it handed nothing over."""
        if not self.prefill_fields:
            return {}
        params = (read_as(_body, answer) or {}).get(_PARAMS)
        if params is None or not bytes(params).startswith(b"{"):
            return None
        return {_PARAMS: Raw(bytes(params))}  # a copy: it outlives the answer


CONNECTORS: Final[Mapping[TransferName, Connector]] = {
    "shared_storage": Connector(),
    "nixl": Connector(_NIXL_LEASE_S, counts_fetched=False, prefill_fields={_PARAMS: _HOLD}),
}


def prefill_leg_body(connector: Connector, body: bytes, protocol: Protocol) -> bytes | None:
    """None if `body` cannot be read, does more than compute its prompt, or has transfer fields of its own."""
    fields = read_as(_body, body)
    if fields is None:
        return None
    if _PARAMS in fields and bytes(fields[_PARAMS]) != b"null":
        return None
    if needs_more_than_its_prompt(fields, protocol):
        return None
    return msgspec.json.encode({**for_one_token(fields, protocol), **connector.prefill_fields})
