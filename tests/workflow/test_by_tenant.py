"""Whose sessions are most, and which of those was not seen for longest."""

from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.decision import SessionSource
from gateway.domain.ids import SessionId, TenantId
from gateway.workflow.by_tenant import ByTenant
from gateway.workflow.turns import Session


def made(name: int, tenant: int) -> Session:
    return Session(
        id=SessionId(f"s-{name}"),
        tenant=TenantId(f"t-{tenant}"),
        source=SessionSource.NEW,
        confidence=0.5,
        started_s=0.0,
        last_seen_s=0.0,
    )


STEPS = st.lists(
    st.tuples(st.sampled_from(["add", "touch", "remove", "evict"]), st.integers(0, 3), st.integers(0, 9))
)


@given(STEPS)
def test_what_goes_first_is_of_the_tenant_that_has_most(steps):
    kept, model = ByTenant(), []  # the longest unseen first
    for number, (step, tenant, at) in enumerate(steps):
        if step == "add":
            model.append(made(number, tenant))
            kept.add(model[-1])
        elif model and step == "touch":
            session = model.pop(at % len(model))
            model.append(session)
            kept.touch(session)
        elif model and step == "remove":
            kept.remove(model.pop(at % len(model)))
        elif model:
            counts = {each.tenant: sum(other.tenant == each.tenant for other in model) for each in model}
            victim = kept.longest_unseen()
            assert counts[victim.tenant] == max(counts.values())
            assert victim is next(each for each in model if each.tenant == victim.tenant)
            model.remove(victim)
            kept.remove(victim)
        for name in {each.tenant for each in model}:
            assert list(kept.newest_first(name)) == [each for each in reversed(model) if each.tenant == name]
    for session in model:
        kept.remove(session)
    assert not kept._sessions and not kept._with and kept._most == 0
    assert list(kept.newest_first(TenantId("t-0"))) == []
