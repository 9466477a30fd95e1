"""Hints, as the engine reads them."""

import dataclasses
import math
import random
from typing import Any

from tests.fuzz.mutation import mutate, spelt, value
from turnpike_vllm import hints
from turnpike_vllm.hints import Hint, Refusal

_KEY = "k" * 64
_FIELDS = sorted({hints._WIRE_NAMES.get(each.name, each.name) for each in dataclasses.fields(Hint)})


def make(rng: random.Random) -> Any:
    fields = [(field, rng.choice((value(rng, 2), 1, 0.5, "reactive"))) for field in _FIELDS]
    members = [each for each in fields if rng.randrange(3) == 0]
    text = spelt(
        rng, [("v", 1), ("session", "s"), ("seq", 1), *members][rng.randrange(2) * rng.randrange(4) :]
    )
    return (
        mutate(rng, text)
        if rng.randrange(2)
        else rng.choice((text.decode("utf-8", "surrogatepass"), value(rng)))
    )


def check(raw: Any) -> None:
    """A hint is read or refused; what is read is written as it was; what nobody signed is refused."""
    found = hints.parse(raw)
    hints.parse_many(raw)
    assert hints.parse_signed(raw, _KEY) is Refusal.UNSIGNED
    if isinstance(found, Hint):
        assert hints.parse(found.as_json()) == found
        assert hints.parse_signed(hints.sign(found.as_json(), _KEY), _KEY) == found
        numbers = (found.retain_s, found.reuse, found.age_s, found.prefetch_in_s)
        assert all(each is None or math.isfinite(each) for each in numbers)
