"""Sessions that their clients say are over: `POST /finish_session`, or ThunderAgent's `/programs/release`.

The id is the one that the turns stated, whichever way: header or field need not be the same; or the
gateway's own. It goes to no engine. Whoever has no such session is answered well, as rollouts release what
may have ended by itself.

Invariants: only sessions of the caller's tenant end, and of these no other because of a sub-agent of it; what
runs of one ends first.
"""

from typing import Final

import msgspec

from gateway.core import events as ev
from gateway.core import refusals
from gateway.domain.request import RequestFacts
from gateway.identity.explicit_ids import SCHEMAS, TURNPIKE_SCHEMA
from gateway.server.cluster.peers import Peers
from gateway.server.http.client_connection import ClientConnection
from gateway.server.http.request_parser import HttpRequest
from gateway.server.proxy.driver import Driver

_UNKNOWN: Final = "No session of yours has this id here: none of its turns came, or it has ended."
_NOT_ITS_OWN: Final = "This id is of a sub-agent; the session that began it goes on."


async def release(
    driver: Driver,
    peers: Peers | None,
    client: ClientConnection,
    request: HttpRequest,
    facts: RequestFacts,
) -> None:
    caller, stated = request.head.caller, facts.explicit
    if stated is None:
        client.refuse(facts.protocol, refusals.no_session_named())
        return
    sessions, tenant, name = driver.coordinator.sessions.sessions, caller.tenant.id, stated.session
    known = [sessions.find_explicit((tenant, schema.name, name)) for schema in SCHEMAS]
    found = [each for each in known if each is not None]
    own = sessions.find_own((tenant, TURNPIKE_SCHEMA, name))
    if not found and peers is not None and not caller.is_from_peer:
        link = await peers.who_has(tenant, name)
        if link is not None and await peers.links.pass_on(client, request, facts, link, False):
            return
    over = {each.id for each in found if each.explicit_keys[0][2] == name}
    if own is not None:
        over.add(own.id)
    if groups := {each.group for each in found} - {None}:
        over |= {each.id for each in sessions.newest_first(tenant) if each.group in groups}
    session_limits, now = driver.coordinator.session_limits, driver.clock()
    if any(session_limits.is_stopped(session, now=now) for session in over):
        client.refuse(facts.protocol, refusals.stopped())
        return
    for session in over:
        driver.send(ev.SessionFinished(session))
    answer = {"session_id": name, "program_id": name, "released": bool(over)}
    if not over:
        answer["detail"] = _NOT_ITS_OWN if found else _UNKNOWN
    client.respond(200, b"", msgspec.json.encode(answer))
