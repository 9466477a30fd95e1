"""Which ids of tool calls and stored state nobody else has.

Some backends draw an id at random; whoever brings it back was given it. Others count (`call_0`,
`functions.bash:0`): half of their conversations have the same ids. The kinds look different, and nobody says
which one a backend uses.

Invariants: the work is linear in the length of the id. In doubt an id counts as a counter: that loses
evidence, and misleads nobody.
"""

import re
from functools import lru_cache
from typing import Final

MIN_RANDOM_CHARS: Final = 8
"""Letters and digits that were drawn at random: more than 40 bits, except in hexadecimal (32)."""
MIN_NUMBERED_CHARS: Final = 16
"""The same, before a number: a name of a tool may look random (`s3GetObjectV2_0`), but it is shorter."""
_DISTINCT: Final = 4
_LONGEST: Final = 256
_NUMBER_CHARS: Final = 6
_PARTS: Final = re.compile(r"[0-9A-Za-z]+")
_NUMBERS_AND_WORDS: Final = re.compile(r"[0-9]+|[A-Za-z]+")
_RUNS: Final = re.compile(r"[0-9]+|[a-z]+|[A-Z]+")
_MIXED: Final = re.compile(r"[0-9][A-Za-z]{1,14}[0-9]|[A-Za-z][0-9]{1,14}[A-Za-z]")
"""Digits and letters that follow one another more than once."""
_END_OF_UUID: Final = re.compile(r"[89ab][0-9a-f]{15}")
"""The second half of a random UUID, which vLLM uses alone: the first digit says its variant (RFC 9562)."""
_OF_A_TOOL: Final = "functions."
"""Kimi's ids are `functions.NAME:NUMBER`, whatever the name looks like."""


@lru_cache(1024)
def is_counter_like(known_as: str) -> bool:
    """Whether others may have been given this id, too. Where there are other gateways, three ask for each."""
    text = known_as[:_LONGEST]
    if text.startswith(_OF_A_TOOL):
        return True
    end = text[-MIN_NUMBERED_CHARS:]
    if len(end) == MIN_NUMBERED_CHARS and end.isalnum() and end.isascii() and _MIXED.search(end):
        if len(set(end)) >= _DISTINCT:
            return False  # as most are; what follows would say so, in five times the time
    if _END_OF_UUID.fullmatch(text[-17:].replace("-", "")[-16:]) and len(set(end)) >= _DISTINCT:
        return False  # one in 450 of vLLM's has its digits in front and its letters behind, or no letters
    least = MIN_RANDOM_CHARS
    name = text.rstrip("0123456789")
    if 0 < len(text) - len(name) <= _NUMBER_CHARS and name and not name[-1].isalnum():
        text, least = name, MIN_NUMBERED_CHARS
    return sum(len(part) for part in _PARTS.findall(text) if _is_random(part)) < least


def _is_random(part: str) -> bool:
    """Letters and digits in no order: no word, no number, no word with a number.

    Of letters drawn at random every second one changes case; of `getWeatherForCity` every third one does.
    """
    if len(set(part)) < min(_DISTINCT, len(part)):
        return False
    if len(_NUMBERS_AND_WORDS.findall(part)) > 2:
        return True
    core = part.strip("0123456789")
    return (len(_RUNS.findall(core)) - 1) * 5 >= len(core) * 2 > 0
