"""Reactive or proactive, and when the difference ends."""

import pytest

from gateway.admission.classes import ClassClaim, ServiceClass, classify
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
