"""Sets of labels with series of their own: few at a time, and not for ever."""

from operator import itemgetter

from gateway.telemetry.label_slots import IDLE_S, LabelSlots


def test_who_comes_late_has_the_slot_of_who_was_not_seen_for_long():
    gone: list[tuple[str, ...]] = []
    slots: LabelSlots[tuple[str, ...]] = LabelSlots(2, gone.append)
    assert slots.take(("a",), now=0.0) and slots.take(("b",), now=1.0)
    assert not slots.take(("c",), now=2.0)
    assert slots.take(("a",), now=IDLE_S)
    assert slots.take(("c",), now=IDLE_S + 1) and gone == [("b",)]
    assert not slots.take(("b",), now=IDLE_S + 2), "series do not come and go with every request"


def test_who_has_few_gets_one_of_who_has_many_and_keeps_it():
    gone: list[tuple[str, ...]] = []
    slots: LabelSlots[tuple[str, ...]] = LabelSlots(4, gone.append, itemgetter(1))
    assert all(slots.take((name, "a"), now=0.0) for name in "1234") and not slots.take(("5", "a"), now=1.0)
    assert slots.take(("1", "b"), now=1.0) and slots.take(("2", "b"), now=2.0)
    assert not slots.take(("3", "b"), now=3.0), "they have two each"
    assert slots.take(("1", "c"), now=4.0) and not slots.take(("2", "c"), now=5.0)
    assert gone == [("1", "a"), ("2", "a"), ("3", "a")]
    assert slots.take(("6", "a"), now=IDLE_S) and gone[-1] == ("4", "a")
