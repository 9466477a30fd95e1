"""Reactive or proactive, and when the difference ends."""

import pytest

from gateway.admission.classes import Ageing, ClassClaim, ClassesConfig, ServiceClass, classify
from gateway.domain.request import Claims

REACTIVE, PROACTIVE = ServiceClass.REACTIVE, ServiceClass.PROACTIVE


@pytest.mark.parametrize(
    ("claim", "expected"),
    [
        (ClassClaim(), (REACTIVE, "default")),
        (ClassClaim(is_background=True), (PROACTIVE, "background")),
        (ClassClaim(stated=Claims()), (REACTIVE, "default")),
        (ClassClaim(stated=Claims(service_tier="flex")), (PROACTIVE, "service_tier")),
        (ClassClaim(stated=Claims(service_tier="default")), (REACTIVE, "service_tier")),
        (ClassClaim(stated=Claims(service_tier="priority"), is_background=True), (REACTIVE, "service_tier")),
        (ClassClaim(stated=Claims(service_tier="priority"), key_class=PROACTIVE), (PROACTIVE, "key")),
        (ClassClaim(stated=Claims(service_class="reactive"), key_class=PROACTIVE), (REACTIVE, "header")),
        (
            ClassClaim(stated=Claims(service_class="proactive", service_tier="priority"), key_class=REACTIVE),
            (PROACTIVE, "header"),
        ),
    ],
)
def test_the_first_evidence_counts(claim, expected):
    assert classify(claim) == expected


def test_who_waited_too_long_is_promoted_and_one_may_exceed_the_window():
    ageing = Ageing(ClassesConfig(age_s=10))
    assert ageing.due_s(5.0) == 15.0
    assert not ageing.is_aged(5.0, now=14.9) and ageing.is_aged(5.0, now=15.0)
    assert ageing.may_exceed_window(0) and not ageing.may_exceed_window(1)
