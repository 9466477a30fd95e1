"""Sets of labels with series of their own: few at a time, and not for ever."""

from gateway.telemetry.label_slots import IDLE_S, LabelSlots


def test_who_comes_late_has_the_slot_of_who_was_not_seen_for_long():
    gone: list[tuple[str, ...]] = []
    slots: LabelSlots[tuple[str, ...]] = LabelSlots(2, gone.append)
    assert slots.take(("a",), now=0.0) and slots.take(("b",), now=1.0)
    assert not slots.take(("c",), now=2.0)
    assert slots.take(("a",), now=IDLE_S)
    assert slots.take(("c",), now=IDLE_S + 1) and gone == [("b",)]
    assert not slots.take(("b",), now=IDLE_S + 2), "series do not come and go with every request"
