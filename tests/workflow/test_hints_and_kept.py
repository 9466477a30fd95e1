"""Hints from a turn's arrival to the end of its session; whose sessions are most, and what is kept of one."""

import sys
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.ids import ReplicaId, RequestId, SessionId, TenantId
from gateway.domain.session_ids import numbered_ids
from gateway.workflow.conversations import Conversations, ConversationsConfig
from gateway.workflow.engine_hints import Hints
from gateway.workflow.sessions import Sessions, SessionsConfig
from gateway.workflow.turns import Outcome
from tests.reachable import reachable
from tests.workflow.test_conversations import answer, facts, ref
from tests.workflow.world import World, call, result, user
from turnpike_vllm.hints import Hint, ServiceClass, parse

A = ReplicaId("a")
NOTHING: Any = {"age_s": 0.0, "service_class": None}


def world() -> Any:
    known: Any = Conversations(ConversationsConfig())
    return known, Hints(known.graphs)


def test_a_turn_from_its_arrival_to_the_end_of_its_session():
    known, hints = world()
    thread = known.arrived(ref("s"), facts(), now=0.0)
    first = hints.with_request(ref("s"), thread, A, **NOTHING)
    pause: Any = known.answered(ref("s"), facts(), answer("bash"), now=1.0)
    decision: Any = hints.retention(thread, pause, A)
    assert decision.retain_s == 6.0
    calm = parse(hints.write(ref("s").session, ref("s").thread, decision))
    assert isinstance(calm, Hint) and calm.retain_s == 6.0 and first is not None
    hints.engine_reported(A, 1.0)
    hints.engine_reported(A, None)
    assert hints.retention(thread, pause, A).retain_s == 3.0  # the cache is full
    known.arrived(ref("s"), facts(), now=3.0)
    [(replica, over)] = hints.session_over(SessionId("s"))
    finished: Any = parse(over)
    assert replica == A and finished.is_finished and hints.session_over(SessionId("s")) == []


def test_what_a_session_is_goes_with_it_to_every_engine():
    known, hints = world()
    thread = known.arrived(ref("s"), facts(), now=0.0)
    for replica, age_s in (("a", 0.0), ("b", 40.0)):
        told = {"age_s": age_s, "service_class": "proactive"}
        sent: Any = parse(hints.with_request(ref("s"), thread, ReplicaId(replica), **told))
        assert (sent.service, sent.age_s) == (ServiceClass.PROACTIVE, age_s)


MOST = 5
STEPS = st.lists(
    st.tuples(st.sampled_from(["add", "add", "touch", "remove"]), st.integers(0, 3), st.integers(0, 9))
)


@given(STEPS)
def test_what_goes_first_is_of_the_tenant_that_has_most(steps):
    kept, model = Sessions(SessionsConfig(max_sessions=MOST), numbered_ids()), []  # the longest unseen first
    for number, (step, tenant, at) in enumerate(steps):
        now, request = float(number), RequestId(str(number))
        if step == "add":
            model.append(kept.arrived(request, TenantId(f"t-{tenant}"), facts(), now=now)[0])
            kept.ended(request, None, Outcome.ANSWERED, now=now)
            gone = [session for session, _ in kept.expire(now=now)]
            assert len(gone) == (len(model) > MOST)
            for victim in gone:
                counts = Counter(each.tenant for each in model)
                assert counts[victim.tenant] == max(counts.values())
                assert victim is next(each for each in model if each.tenant == victim.tenant)
                model.remove(victim)
        elif model and step == "touch":
            model.append(model.pop(at % len(model)))
            kept.touch(model[-1], now=now)
        elif model:
            kept.forget(model.pop(at % len(model)))
        assert list(kept.newest_first()) == model[::-1]
        for name in {each.tenant for each in model}:
            assert list(kept.newest_first(name)) == [each for each in reversed(model) if each.tenant == name]
    for session in model:
        kept.forget(session)
    assert not kept._traces and not kept._with and kept._most == 0
    assert list(kept.newest_first(TenantId("t-0"))) == []


MOST_BYTES = 2**20
"""Of a session of the default settings that does its worst; an ordinary one takes ten thousand."""


@pytest.mark.slow
def test_the_worst_session_takes_no_more_than_a_mebibyte():
    world = World(max_sessions=10)
    sizes = []
    for at in range(120):
        texts = {f"field{n}": " ".join(f"word{at}.{n}.{k}" for k in range(40)) for n in range(20)}
        calls = [call(f"call_{at:04}_{n:09}", "bash" * 20, **texts) for n in range(80 if at % 4 == 0 else 1)]
        said = " ".join(f"said{at}.{n}" for n in range(200))
        results = [result(f"call_{at:04}_{n:09}", said) for n in range(3)]
        body = [user(f"{said} {at}"), *results]
        world.answered(body, said, *calls, session_id="s", thread_id=f"thread-{at}", after=0.1)
        world.play.records.clear()
        sizes.append(sum(map(sys.getsizeof, reachable(world.sessions))))
    assert len(world.sessions) == 1
    assert sizes[-1] < MOST_BYTES
    assert sizes[-1] < 1.2 * sizes[len(sizes) * 2 // 3], "it does not grow any more"
