"""Places for LoRA adapters: who runs where, and where one more would wait."""

from gateway.domain.ids import ReplicaId, RequestId
from gateway.fleet.adapters import AdapterSlots

A, B = ReplicaId("a"), ReplicaId("b")
R1, R2, R3 = map(RequestId, ("r1", "r2", "r3"))


def slots(most: int = 1) -> AdapterSlots:
    known = AdapterSlots()
    for replica in (A, B):
        known.listed(replica, ("sql", "law"))
        known.told(replica, most, ())
    return known


def full(known: AdapterSlots, model: str | None, *, have_others: bool = False) -> list[ReplicaId]:
    return [each for each in (A, B) if known.is_full(each, model, have_others=have_others)]


def test_another_adapter_waits_where_all_places_are_taken():
    known = slots()
    known.began(R1, A, "sql")
    assert full(known, "law") == [A] and full(known, "sql") == []
    known.began(R2, A, "sql")
    known.ended(R1)
    assert full(known, "law") == [A]
    known.ended(R2)
    known.ended(R3)
    assert full(known, "law") == []


def test_the_base_model_and_unknown_names_take_no_place():
    known = slots()
    for request, model in ((R1, "base"), (R2, None)):
        known.began(request, A, model)
    known.began(R3, A, "sql")
    assert full(known, "law") == [A] and full(known, "base") == full(known, None) == []


def test_several_may_run_at_a_time():
    known = slots(most=2)
    known.began(R1, A, "sql")
    assert full(known, "law") == []


def test_what_others_run_counts_where_they_do():
    known = slots()
    known.told(A, 1, ("sql",))
    assert full(known, "law") == [] and full(known, "law", have_others=True) == [A]


def test_nobody_waits_where_nothing_is_said_of_places():
    known = AdapterSlots()
    known.listed(A, ("sql", "law"))
    known.told(A, None, ())
    known.began(R1, A, "sql")
    assert not known.are_told
    assert full(known, "law") == []


def test_nothing_is_kept_of_who_left():
    known = slots()
    known.began(R1, A, "sql")
    known.ended(R1)
    for replica in (A, B):
        known.left(replica)
    assert not any(vars(known).values())
