"""How the KV cache of a prompt gets from the engine that has it to the one that decodes behind it.

Either in two legs of one request: the *prefill leg* asks one engine for the prompt and one token, the *decode
leg* is the client's request at another engine. Or as a *pull*: the client's request names an engine that has
the beginning of its prompt. What is to be told depends on the engines' KV connector.

`shared_storage`: all read and write one store, and name a prompt by its tokens (vLLM's `ExampleConnector`).
Nothing is told.
`nixl`: the prefill leg is asked to hold its blocks, and its answer says where they are; the decode leg is
told that, and its engine pulls them (vLLM's `NixlConnector`). Nothing else can be pulled.
`p2p`: both legs are told a name, and the decode leg where the first engine's tier listens (vLLM's
`OffloadingConnector` with a tier of type `p2p`; it is read in `vllm/v1/kv_offload/tiering/p2p/manager.py`).
A pull is told the same of the engine that it is from, under another word: that engine is asked first what it
has. Names are to be told once.
"""

from collections.abc import Mapping
from typing import Any, Final, Literal, NamedTuple

import msgspec
from msgspec import Raw

from gateway.domain.request import Protocol
from gateway.wire.body import UNREADABLE
from gateway.wire.prefill import for_one_token, needs_more_than_its_prompt

TransferName = Literal["shared_storage", "nixl", "p2p"]

_PARAMS: Final = "kv_transfer_params"
_HOLD: Final = Raw(
    b'{"do_remote_decode":true,"do_remote_prefill":false,"remote_engine_id":null,'
    b'"remote_block_ids":null,"remote_host":null,"remote_port":null}'
)
_NIXL_LEASE_S: Final = 20.0
"""A producer keeps its blocks for 30 s, unless a consumer says within that time that it waits for them."""
_P2P_LEASE_S: Final = 40.0
"""The same, 60 s."""
_body: Final = msgspec.json.Decoder(dict[str, Raw])


class Tier(NamedTuple):
    """Where an engine's KV tier listens for others."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> "Tier":
        """Of `host:port`, or `[address]:port`. Raises ValueError for any other text."""
        host, _, port = text.rpartition(":")
        if not host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
            raise ValueError(f"{text[:80]!r} is not a host and a port")
        return cls(host.removeprefix("[").removesuffix("]") if host.startswith("[") else host, int(port))


class Connector:
    """Engines that share a store."""

    lease_s = float("inf")
    """How long after its end the prefill leg's cache may be fetched."""
    counts_fetched = True
    """What was fetched counts as cached in the usage of the answer; else that says what the engine found that
    computed the prompt (vLLM's `remote_prefill_cached_tokens`)."""
    needs_tiers = False
    """It must be known where each engine's tier listens."""

    def prefill_fields(self, name: str) -> Mapping[str, Raw]:
        """For the body of the prefill leg, beside those that ask for one token. `name`: no other request has
        it."""
        return {}

    def decode_fields(self, answer: bytes, name: str, source: Tier | None) -> dict[str, Raw] | None:
        """For the body of the decode leg. `answer`: the prefill leg's; `source`: where the engine listens
        that gave it. None if it handed nothing over."""
        return {}

    def pull_fields(self, name: str, source: Tier | None) -> dict[str, Raw] | None:
        """For the body of a request whose prompt begins with what an engine has. None if it cannot be pulled
        from there."""
        return {}


class _Nixl(Connector):
    lease_s = _NIXL_LEASE_S
    counts_fetched = False

    def prefill_fields(self, name: str) -> Mapping[str, Raw]:
        return {_PARAMS: _HOLD}

    def decode_fields(self, answer: bytes, name: str, source: Tier | None) -> dict[str, Raw] | None:
        try:
            params = _body.decode(answer).get(_PARAMS)
        except UNREADABLE:
            return None
        if params is None or not bytes(params).startswith(b"{"):
            return None
        return {_PARAMS: Raw(bytes(params))}  # a copy: it outlives the answer

    def pull_fields(self, name: str, source: Tier | None) -> dict[str, Raw] | None:
        return None


class _P2P(Connector):
    lease_s = _P2P_LEASE_S
    needs_tiers = True

    def prefill_fields(self, name: str) -> Mapping[str, Raw]:
        return _params("remote_decoder", {"kv_request_id": name})

    def decode_fields(self, answer: bytes, name: str, source: Tier | None) -> dict[str, Raw] | None:
        return _from("remote_prefiller", name, source)

    def pull_fields(self, name: str, source: Tier | None) -> dict[str, Raw] | None:
        return _from("remote_kv_source", name, source)


def _from(role: str, name: str, source: Tier | None) -> dict[str, Raw] | None:
    if source is None:
        return None
    return _params(role, {"kv_request_id": name, "remote_host": source.host, "remote_port": source.port})


def _params(role: str, told: Mapping[str, Any]) -> dict[str, Raw]:
    return {_PARAMS: Raw(msgspec.json.encode({role: told}))}


CONNECTORS: Final[Mapping[TransferName, Connector]] = {
    "shared_storage": Connector(),
    "nixl": _Nixl(),
    "p2p": _P2P(),
}


def prefill_leg_body(connector: Connector, body: bytes, protocol: Protocol, name: str) -> bytes | None:
    """Of a request that may be prefilled; None if it cannot be read, does more than compute its prompt, or
    says itself what is transferred."""
    try:
        fields = _body.decode(body)
    except UNREADABLE:
        return None
    if _PARAMS in fields and bytes(fields[_PARAMS]) != b"null":
        return None
    if needs_more_than_its_prompt(fields, protocol):
        return None
    return msgspec.json.encode({**for_one_token(fields, protocol), **connector.prefill_fields(name)})
