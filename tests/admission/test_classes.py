"""Reactive or proactive, and when the difference ends."""

import pytest

from gateway.admission.classes import Ageing, ClassClaim, ClassesConfig, ServiceClass, classify

REACTIVE, PROACTIVE = ServiceClass.REACTIVE, ServiceClass.PROACTIVE


@pytest.mark.parametrize(
    ("claim", "expected"),
    [
        (ClassClaim(), (REACTIVE, "default")),
        (ClassClaim(is_background=True), (PROACTIVE, "background")),
        (ClassClaim(service_tier="flex", is_background=False), (PROACTIVE, "service_tier")),
        (ClassClaim(service_tier="default"), (REACTIVE, "default")),
        (ClassClaim(service_tier="priority", is_background=True), (PROACTIVE, "background")),
        (
            ClassClaim(service_tier="priority", is_background=True, is_trusted=True),
            (REACTIVE, "service_tier"),
        ),
        (ClassClaim(key_class=PROACTIVE, service_tier="priority", is_trusted=True), (PROACTIVE, "key")),
        (ClassClaim(stated="reactive", key_class=PROACTIVE), (PROACTIVE, "key")),
        (ClassClaim(stated="reactive", key_class=PROACTIVE, is_trusted=True), (REACTIVE, "header")),
        (ClassClaim(stated="proactive", key_class=REACTIVE), (PROACTIVE, "header")),
        (ClassClaim(stated="urgent", is_trusted=True), (REACTIVE, "default")),
    ],
)
def test_the_first_evidence_counts_and_more_only_if_it_is_trusted(claim, expected):
    assert classify(claim) == expected


def test_who_waited_too_long_is_promoted_and_one_may_exceed_the_window():
    ageing = Ageing(ClassesConfig(age_s=10))
    assert ageing.due_s(5.0) == 15.0
    assert not ageing.is_aged(5.0, now=14.9) and ageing.is_aged(5.0, now=15.0)
    assert ageing.may_exceed_window(0) and not ageing.may_exceed_window(1)
