"""How the KV cache of a prompt gets from the engine that computed it to the one that decodes behind it.

In two legs of one request: the *prefill leg* asks one engine for the prompt and one token, the *decode leg*
is the client's request at another engine. What is to be told depends on the engines' KV connector.

`shared_storage`: all read and write one store, and name a prompt by its tokens (vLLM's `ExampleConnector`).
Nothing is told.
`nixl`: the prefill leg is asked to hold its blocks, and its answer says where they are; the decode leg is
told that, and its engine fetches them (vLLM's `NixlConnector`).
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
_NIXL_LEASE_S: Final = 20.0
"""A producer keeps its blocks for 30 s, unless a consumer says within that time that it waits for them."""
_body: Final = msgspec.json.Decoder(dict[str, Raw])


class Connector(msgspec.Struct):
    """By default, of engines that share a store."""

    lease_s: float = float("inf")
    """How long after its end the prefill leg's cache may be fetched."""
    counts_fetched: bool = True
    """What was fetched counts as cached in the usage of the answer; else that says what the engine found that
    computed the prompt (vLLM's `remote_prefill_cached_tokens`)."""
    prefill_fields: Mapping[str, Raw] = {}
    """What the prefill leg is asked beside its prompt, if it is to hand something over."""

    def decode_fields(self, answer: bytes) -> dict[str, Raw] | None:
        """For the body of the decode leg. `answer`: the prefill leg's. None if it handed nothing over."""
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
    """Of a request that may be prefilled; None if it cannot be read, does more than compute its prompt, or
    says itself what is transferred."""
    fields = read_as(_body, body)
    if fields is None:
        return None
    if _PARAMS in fields and bytes(fields[_PARAMS]) != b"null":
        return None
    if needs_more_than_its_prompt(fields, protocol):
        return None
    return msgspec.json.encode({**for_one_token(fields, protocol), **connector.prefill_fields})
