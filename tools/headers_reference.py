"""Writes docs/reference/headers.md from the tables of the code: `python -m tools.headers_reference`."""

from collections.abc import Iterable
from pathlib import Path
from typing import Final

from gateway.identity.explicit_ids import SCHEMAS
from gateway.requests.claims import CLASS_HEADER, CLASSES, TIERS
from gateway.server.auth.authenticator import NAMES_AN_UPSTREAM
from gateway.server.proxy.decision_headers import RECEIPTS

TARGET: Final = Path(__file__).parent.parent / "docs/reference/headers.md"

_HEAD: Final = """\
# Headers and fields

<!-- Written by `python -m tools.headers_reference`; change the tables in the code, not this file. -->

## Of a response

`server.debug_headers = false` removes them. [Reasons](reasons.md) has the values of `x-turnpike-reason` and
`x-turnpike-source`.

"""
_CLAIMS: Final = """
## Urgency and retention

From tenants with `permissions = ["scheduling"]`; without tenants, from everybody.

| header or field | values |
|---|---|
"""
_IDS: Final = """
## Session ids

The first row with a valid session id counts; other rows are ignored. `body.x` is a field of the request body,
`x#y` the field `y` of the JSON object in `x`. A *weak* id is ignored beside `previous_response_id`, and where
unrelated conversations share it. An id has at most 256 printable characters.

| convention | session | thread | parent | end of session |
|---|---|---|---|---|
"""
_REFUSED: Final = """
## Refused

A request with one of these headers gets 403: a client does not choose the replica.

"""


def page() -> str:
    parts = [_HEAD, "| header | |\n|---|---|\n"]
    parts += [f"| `{name}` | {about} |\n" for name, about in RECEIPTS.items()]
    parts += [_CLAIMS, f"| `{CLASS_HEADER.decode()}` | {_listed(CLASSES)} |\n"]
    parts += [f"| `body.service_tier` | {_listed(sorted(TIERS))} |\n"]
    parts += ["| `kv_retention_ttl_seconds` of `body.vllm_xargs.agentic_context` | seconds |\n"]
    parts += ["| `expected_resume` of the same, or of `agent_hint` | true, false |\n"]
    parts += [_IDS]
    for each in SCHEMAS:
        name = f"{each.name} (weak)" if each.is_weak else each.name
        cells = (each.session, each.thread, each.parent, (each.final,) if each.final else ())
        parts.append(f"| {name} | {' | '.join(_listed(cell) for cell in cells)} |\n")
    parts += [_REFUSED, *(f"- `{name.decode()}`\n" for name in sorted(NAMES_AN_UPSTREAM))]
    return "".join(parts)


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names) or "–"


if __name__ == "__main__":
    TARGET.write_text(page())
    print(f"wrote {TARGET.name}")
