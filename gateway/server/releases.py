"""Sessions that their clients say are over: `POST /finish_session`, or ThunderAgent's `/programs/release`.

The id is the one that the turns stated, whichever way: header or field need not be the same. It goes to no
engine. Whoever has no such session is answered well, as rollouts release what may have ended by itself.

Invariants: only sessions of the caller's tenant end, and of these no other because of a sub-agent of it; what
runs of one ends first.
"""

from typing import Final

import msgspec

from gateway.core import events as ev
from gateway.core import refusals
from gateway.domain.ids import TenantId
from gateway.domain.request import RequestFacts
from gateway.server.asking import Asking
from gateway.server.connection import ClientConnection
from gateway.server.request_parser import HttpRequest
from gateway.wire.explicit_ids import SCHEMAS
from gateway.workflow.sessions import Sessions
from gateway.workflow.turns import Session

_UNKNOWN: Final = "No session of yours has this id here: none of its turns came, or it has ended."
_NOT_ITS_OWN: Final = "This id is of a sub-agent; the session that began it goes on."


async def release(
    asking: Asking, client: ClientConnection, request: HttpRequest, facts: RequestFacts
) -> None:
    visitor, peers, stated = request.head.visitor, asking.peers, facts.explicit
    if stated is None:
        client.refuse(facts.protocol, refusals.no_session_named())
        return
    found = list(_known(asking.driver.coordinator.sessions.sessions, visitor.tenant.id, stated.session))
    if not found and peers is not None and not visitor.was_passed_on:
        link = await peers.who_has(visitor.tenant.id, stated.session)
        if link is not None and await peers.links.pass_on(client, request, facts, link, False):
            return
    own = [each for each in found if each.group is not None or each.explicit_keys[0][2] == stated.session]
    for each in own:
        asking.driver.send(ev.SessionFinished(each.id))
    answer = {"session_id": stated.session, "program_id": stated.session, "released": bool(own)}
    if not own:
        answer["detail"] = _NOT_ITS_OWN if found else _UNKNOWN
    client.respond(200, b"", msgspec.json.encode(answer))


def _known(sessions: Sessions, tenant: TenantId, stated: str) -> dict[Session, None]:
    found: dict[Session, None] = {}
    for schema in SCHEMAS:
        session = sessions.find_explicit((tenant, schema.name, stated))
        if session is not None and session.group is not None:
            found |= dict.fromkeys(
                each for each in sessions.newest_first(tenant) if each.group == session.group
            )
        elif session is not None:
            found[session] = None
    return found
