"""Call ids that come back: the tail of a conversation, read from its end.

A request repeats the model's newest tool calls and brings their results. If a backend behind us minted
those ids, they identify the response that the request follows (docs/design/sessions.md). Only the newest
*assistant block* matters: the run of items that one response left behind. If it made no call, the
newest block that did is the best witness left.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Final

import msgspec

from gateway.identity.items import ASIDE, ASSISTANT, Item

# How many items we look at. Larger batches of parallel calls are recognised by their newest ones.
MAX_ITEMS: Final = 128

MAX_IDS: Final = 256


class Echoes(msgspec.Struct, frozen=True, gc=False):
    """Call ids in a conversation's tail; unique, newest first."""

    echoed_ids: tuple[str, ...] = ()
    tool_result_ids: tuple[str, ...] = ()


NO_ECHOES: Final = Echoes()


def read_echoes(
    known: Mapping[int, Item], hashes: Sequence[int], news: range, call_end: int, read: Callable[[int], Item]
) -> Echoes:
    """The call ids in the newest assistant block that has any, and the results after the newest one.

    `news`: where the items behind the model's newest are; `call_end`: number of items up to its newest call;
    `known`: items by their hashes, which others are read for.
    """
    newest = range(news.stop - 1, max(news.start - 2, news.stop - MAX_ITEMS - 1, -1), -1)
    before = min(call_end, news.start - 1)
    block = range(before - 1, max(-1, before - MAX_ITEMS), -1)
    results: dict[str, None] = {}
    calls: dict[str, None] = {}
    has_left_tail = has_observation = False
    for place in chain(newest, block):
        item = known.get(hashes[place]) or read(place)
        ids = item.ids
        if item.kind == ASSISTANT or item.kind == ASIDE:
            has_left_tail = True
            for call_id in reversed(ids):
                calls[call_id] = None
        elif calls:
            break
        elif not has_left_tail:
            for call_id in reversed(ids):
                results[call_id] = None
            has_observation = has_observation or item.is_observation
        if ids and len(calls) + len(results) > MAX_IDS:
            break
    if not calls and not results:
        return NO_ECHOES
    if has_observation and not results:
        results = calls
    return Echoes(tuple(results | calls)[:MAX_IDS], tuple(results)[:MAX_IDS])
