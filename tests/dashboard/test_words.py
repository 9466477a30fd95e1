"""The page has a sentence for every reason that the gateway gives."""

import re
from enum import Enum
from pathlib import Path

import pytest

from gateway.domain.decision import Edge, PlacementReason, RefusalReason, SessionSource, WaitReason

WORDS = Path(__file__).parents[2] / "gateway" / "dashboard" / "static" / "words.js"
AT_THE_DOOR = {
    "malformed_http", "headers_too_large", "body_too_large", "unsupported_upgrade", "request_timeout",
    "unauthenticated", "forbidden", "internal",
}  # fmt: skip
"""Refused before there is a turn, or by accident: told by their names."""


@pytest.mark.parametrize(
    ("name", "reasons", "untold"),
    [
        ("WAITS", WaitReason, set()),
        ("PLACES", PlacementReason, set()),
        ("REFUSALS", RefusalReason, AT_THE_DOOR),
        ("EDGES", Edge, set()),
        ("SOURCES", SessionSource, {"none"}),
    ],
)
def test_every_reason_has_a_sentence(name: str, reasons: type[Enum], untold: set[str]):
    (table,) = re.findall(rf"export const {name} = {{(.*?)\n}};", WORDS.read_text(), re.DOTALL)
    told = set(re.findall(r'^  "?([a-z_-]+)"?: "', table, re.MULTILINE))
    assert {reason.value for reason in reasons} - told == untold
