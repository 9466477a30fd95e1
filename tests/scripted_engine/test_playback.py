"""Playing a reply token by token, with and without a grammar in the way."""

from collections.abc import Callable

import pytest

from scripted_engine.playback import UNKNOWN, Playback, Vocabulary

END, BLANK = 0, 1
VOCABULARY = Vocabulary(end=END, blank=BLANK, closers=(END, 90, 91))


def anything(token: int) -> bool:
    return True


def but(*forbidden: int) -> Callable[[int], bool]:
    return lambda token: token not in forbidden


def only(*allowed: int) -> Callable[[int], bool]:
    return lambda token: token in allowed


def constrained(*renderings: list[int]) -> Playback:
    return Playback(renderings, VOCABULARY, constrained=True)


def test_a_later_rendering_must_keep_what_is_said() -> None:
    playback = constrained([5, 6], [7, 8], [5, 9])
    assert playback.constrained_token_at(0, anything) == 5
    assert playback.constrained_token_at(1, but(6)) == 9


def test_where_nothing_fits_the_way_out_is_taken_and_kept() -> None:
    playback = constrained([5, 6, 7])
    assert playback.constrained_token_at(0, anything) == 5
    assert playback.constrained_token_at(1, only(91, 50)) == 91
    assert playback.constrained_token_at(2, only(50)) is None
    assert playback.constrained_token_at(3, only(7, 90)) == 90  # 7 is the script's, but it has yielded
    assert playback.constrained_token_at(4, anything) == END


@pytest.mark.parametrize("produced", [[5, 6], [5, UNKNOWN], [UNKNOWN, UNKNOWN]])
def test_after_a_preemption_the_reply_goes_on(produced: list[int]) -> None:
    playback = constrained([5, 6, 7], [8])
    playback.resume(produced)
    assert playback.constrained_token_at(2, anything) == 7


@pytest.mark.parametrize("produced", [[50], [5, 50], [5, 6, 7, END, 50]])
def test_after_a_preemption_a_yielded_request_stays_yielded(produced: list[int]) -> None:
    playback = constrained([5, 6, 7])
    playback.resume(produced)
    assert playback.constrained_token_at(len(produced), only(6, 7, 90)) == 90
