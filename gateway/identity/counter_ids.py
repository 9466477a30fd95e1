"""Random ids against counters, for tool calls and stored state.

Some backends draw ids at random, so a returned id is evidence. Others count (`call_0`, `functions.bash:0`):
half of their conversations have the same ids. Backends do not report their kind, but the ids look different.

Invariants: the work is linear in the length of the id. In doubt an id counts as a counter: lost evidence
misleads less than wrong evidence.
"""

import re
from functools import lru_cache
from typing import Final

# Random letters and digits: more than 40 bits, or 32 in hexadecimal.
MIN_RANDOM_CHARS: Final = 8
# The same before a number: tools' names may look random (`s3GetObjectV2_0`), but are shorter.
MIN_NUMBERED_CHARS: Final = 16
_DISTINCT: Final = 4
_LONGEST: Final = 256
_NUMBER_CHARS: Final = 6
_PARTS: Final = re.compile(r"[0-9A-Za-z]+")
_NUMBERS_AND_WORDS: Final = re.compile(r"[0-9]+|[A-Za-z]+")
_RUNS: Final = re.compile(r"[0-9]+|[a-z]+|[A-Z]+")
# Digits and letters mixed.
_MIXED: Final = re.compile(r"[0-9][A-Za-z]{1,14}[0-9]|[A-Za-z][0-9]{1,14}[A-Za-z]")
# The second half of a random UUID, as vLLM uses it: the first digit is the variant (RFC 9562).
_END_OF_UUID: Final = re.compile(r"[89ab][0-9a-f]{15}")
# Kimi's ids are `functions.NAME:NUMBER`.
_OF_A_TOOL: Final = "functions."


@lru_cache(1024)
def is_counter_like(known_as: str) -> bool:
    """Cached, since with several gateways it is called three times for each id."""
    text = known_as[:_LONGEST]
    if text.startswith(_OF_A_TOOL):
        return True
    end = text[-MIN_NUMBERED_CHARS:]
    if len(end) == MIN_NUMBERED_CHARS and end.isalnum() and end.isascii() and _MIXED.search(end):
        if len(set(end)) >= _DISTINCT:
            return False  # the usual case: a shortcut for the rest
    if _END_OF_UUID.fullmatch(text[-17:].replace("-", "")[-16:]) and len(set(end)) >= _DISTINCT:
        return False  # one in 450 of vLLM's has its digits in front and its letters behind, or no letters
    least = MIN_RANDOM_CHARS
    name = text.rstrip("0123456789")
    if 0 < len(text) - len(name) <= _NUMBER_CHARS and name and not name[-1].isalnum():
        text, least = name, MIN_NUMBERED_CHARS
    return sum(len(part) for part in _PARTS.findall(text) if _is_random(part)) < least


def _is_random(part: str) -> bool:
    """No word, no number, no word with a number. Every second random letter changes case, but only every
    third one of `getWeatherForCity`."""
    if len(set(part)) < min(_DISTINCT, len(part)):
        return False
    if len(_NUMBERS_AND_WORDS.findall(part)) > 2:
        return True
    core = part.strip("0123456789")
    return (len(_RUNS.findall(core)) - 1) * 5 >= len(core) * 2 > 0
