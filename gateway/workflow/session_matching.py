"""The ladder: one turn's facts in, its session, thread and place in the lineage out.

Source: ours (docs/design/sessions.md). Stated ids come first; content decides the place in the stated run,
and all of it without a stated id.

Deviations: an id with unexplained conversations is a group, no session: at once for fields that applications
also fill with constants; for a harness's own id, when they run at the same time.

Invariants: nothing is changed here, except that a session may become a member of a group. A turn never leaves
its stated run, unless that is a group.
"""

from typing import Final

from gateway.domain.decision import Edge, SessionSource
from gateway.domain.ids import TenantId
from gateway.domain.request import ExplicitId, RequestFacts
from gateway.identity.explicit_ids import CONNECTION_SCHEMA, TURNPIKE_SCHEMA, WEAK_SCHEMAS
from gateway.workflow.content_matching import GUESS, ContentSearch
from gateway.workflow.session_store import SessionStore
from gateway.workflow.turns import CONFIDENCE, ExplicitKey, Identity, Outcome, Session, Thread, Turn

_SOURCES: Final = {
    TURNPIKE_SCHEMA: SessionSource.TURNPIKE_HEADER,
    CONNECTION_SCHEMA: SessionSource.CONNECTION,
}
_INTERLEAVED_S: Final = 60.0


def identify(
    store: SessionStore, search: ContentSearch, tenant: TenantId, state_session: Session | None
) -> Identity:
    """`state_session`: of the state that the turn builds on."""
    stated = search.facts.explicit
    if stated is None:
        found = search.identity()
        if found.session is None and state_session is not None:
            found = Identity(
                source=SessionSource.STATE_ID,
                confidence=GUESS,  # its turn may have a continuation already
                session=state_session,
                thread=state_session.main,
                edge=Edge.CONTINUES,
                parent=state_session.main.tip,
            )
        return found
    key = (tenant, stated.schema, stated.session)
    session = store.find_explicit(key)
    if session is not None and (group := session.group) is not None:
        found = search.identity(lambda turn: turn.session.group == group)
        is_member = found.session is not None and not (found.thread and found.thread.is_unexplained)
        return found if is_member else Identity(group=group, parent=found.parent, edge=found.edge)
    source = _SOURCES.get(stated.schema, SessionSource.CLIENT_ID)
    if session is not None:
        found = _stated(search, stated, key, session)
    elif (own := store.find_own(key)) is not None:
        found = _stated(search, stated, None, own)
    else:
        found = _introduce(store, key, stated)
    if found.group is None:
        found.source, found.confidence = source, CONFIDENCE[source]
    return found


def _introduce(store: SessionStore, key: ExplicitKey, stated: ExplicitId) -> Identity:
    found = Identity(key=key, name=stated.thread)
    if stated.parent is not None and stated.parent != stated.session:
        run = store.find_explicit((key[0], key[1], stated.parent))
        if run is not None and run.group is None:
            found.session, found.edge, found.parent = run, Edge.SPAWNED, run.main.tip
            found.name = stated.thread or stated.session
    return found


def _stated(search: ContentSearch, stated: ExplicitId, key: ExplicitKey | None, session: Session) -> Identity:
    """`key`: None if the client states our own id."""
    facts = search.facts
    is_alias = key is not None and session.explicit_keys[0] != key
    name = stated.thread or (stated.session if is_alias else None)
    thread = session.main if name is None or name == session.main.name else session.named.get(name)
    found = search.identity(lambda turn: turn.session is session)
    found.key, found.name = key, name
    if name is not None:
        return _in_named_thread(found, thread, session, facts)
    if found.session is not None:
        if key is not None:
            _notice_interleaving(found, session, now=search.now)
        return found
    found.session = session
    main = session.main.tip
    if facts.tool_count == 0 or main is None or not main.offers_tools:
        found.thread, found.parent = session.main, main
        found.edge = Edge.SERVES if facts.tool_count == 0 else Edge.CONTINUES
        if found.edge is Edge.CONTINUES and _is_after_title(main, facts):
            found.edge, found.parent = Edge.OPENS, None
        return found
    if main.has_open_calls:
        found.edge, found.parent = Edge.SPAWNED, main
        return found
    found.is_unexplained = stated.schema != TURNPIKE_SCHEMA
    if found.is_unexplained and (stated.schema in WEAK_SCHEMAS or main.outcome is Outcome.LIVE):
        session.group = key
        return Identity(group=key)
    found.begins_anew = True
    return found


def _in_named_thread(
    found: Identity, thread: Thread | None, session: Session, facts: RequestFacts
) -> Identity:
    is_elsewhere, is_known = found.thread is not thread, found.session is not None
    found.session, found.thread = session, thread
    if thread is None:
        found.edge = Edge.SPAWNED
        found.parent = found.parent or session.main.tip
    elif is_elsewhere or found.parent is None:
        tip = found.parent = thread.tip
        found.edge = Edge.CONTINUES
        if is_known or tip is None or facts.transcript.blocks or facts.state_ids:
            return found
        if _is_after_title(tip, facts):
            found.edge, found.parent = Edge.OPENS, None
        elif tip.offers_tools and facts.tool_count == 0:
            found.edge = Edge.SERVES
        elif facts.transcript.tail and tip.outcome is Outcome.ANSWERED and not tip.has_open_calls:
            found.edge = Edge.COMPACTS  # a summary replaces all turns
    return found


def _is_after_title(tip: Turn | None, facts: RequestFacts) -> bool:
    """An agent's opening after a lone request of another kind, without tools."""
    if tip is None or tip.offers_tools or not tip.is_opening or not tip.agent:
        return False
    opens = facts.tool_count > 0 and not facts.transcript.blocks
    return opens and tip.agent != facts.transcript.agent


def _notice_interleaving(found: Identity, session: Session, *, now: float) -> None:
    """An unexplained conversation at the same time: the id names a group."""
    if found.thread is None or found.edge in (Edge.SERVES, Edge.RETRIES):
        return
    for turn in reversed(session.log):
        other = turn.thread
        if other is found.thread or not (other.is_unexplained or found.thread.is_unexplained):
            continue
        if not (other.is_root and found.thread.is_root):
            continue  # a sub-agent of the run
        before = found.parent.arrived_s if found.parent else 0.0
        if turn.arrived_s > before and now - turn.last_s < _INTERLEAVED_S and not turn.is_side:
            session.group = session.explicit_keys[0]
            return
