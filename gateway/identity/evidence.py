"""Evidence by which other gateways find a session's gateway: names of 64 bits.

Source: ours. Only evidence that decides has a name: stated ids, minted ids, echoed answers, and failed
requests that are repeated. Guesses are not shared.

Invariants: a name is a hash of the tenant and the evidence, so two tenants never share one; a request has at
most `MAX_NAMES`, the strongest evidence first.
"""

from collections.abc import Iterator
from itertools import filterfalse, islice
from typing import Final

from gateway.domain.ids import TenantId
from gateway.domain.request import RequestFacts
from gateway.identity.counter_ids import is_counter_like
from gateway.wire.hashing import digest, hash_text

MAX_NAMES: Final = 16


def of_request(tenant: TenantId, facts: RequestFacts) -> list[int]:
    return list(islice(_of_request(tenant, facts), MAX_NAMES))


def _of_request(tenant: TenantId, facts: RequestFacts) -> Iterator[int]:
    stated = facts.explicit
    if stated is not None:
        yield of_stated(tenant, stated.schema, stated.session)
        if stated.parent is not None:
            yield of_stated(tenant, stated.schema, stated.parent)
    script = facts.transcript
    echoes = (
        of_answer(tenant, block.tail or script.agent, block.text) for block in script.blocks if block.text
    )
    if ends_with_text(facts):
        yield from islice(echoes, 1)
    for minted in minted_ids(facts):
        yield of_minted(tenant, minted)
    yield from echoes
    if facts.transcript.body:
        yield of_failed(tenant, facts.transcript.body)


def minted_ids(facts: RequestFacts) -> Iterator[int]:
    yield from map(hash_text, facts.state_ids)
    yield from map(hash_text, filterfalse(is_counter_like, facts.echoed_ids))


def ends_with_text(facts: RequestFacts) -> bool:
    newest = facts.transcript.blocks[:1]
    return bool(newest) and not newest[0].has_calls and newest[0].text != 0


def of_stated(tenant: TenantId, schema: str, session: str) -> int:
    return hash_text(f"s{len(schema)}:{schema}{len(session)}:{session}{tenant}")


def of_minted(tenant: TenantId, minted: int) -> int:
    return digest(f"m{minted:x} {tenant}".encode())


def of_answer(tenant: TenantId, tail: int, text: int) -> int:
    """Hashes: of the conversation before the answer, and of its text."""
    return digest(f"e{tail:x} {text:x} {tenant}".encode())


def of_failed(tenant: TenantId, body: int) -> int:
    return digest(f"f{body:x} {tenant}".encode())
