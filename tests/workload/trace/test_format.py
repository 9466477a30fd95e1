"""What a workload file may say, and what its check refuses."""

import msgspec
import pytest
from hypothesis import given

from gateway.workload.trace.format import Session, Thread, Tool, Turn, TurnRef, check
from tests.workload.trace.oracle import sessions


def _session(*threads, **more):
    return Session(id="s", threads=tuple(threads), **more)


def _thread(*turns, **more):
    return Thread(turns=turns, **more)


FIRST = Turn(input_tokens=10, output_tokens=5)


def _next(tokens, ref=(0, 0), size=20):
    return Turn(input_tokens=size, output_tokens=1, prefix_of=TurnRef(*ref), prefix_tokens=tokens)


def _starting(child):
    return Turn(input_tokens=1, output_tokens=1, tools=(Tool(name="agent", starts_thread=child),))


@given(sessions())
def test_what_is_valid_passes_and_survives_writing(session):
    check(session)
    assert msgspec.json.decode(msgspec.json.encode(session), type=Session) == session


@pytest.mark.parametrize(
    ("session", "complaint"),
    [
        (_session(_thread(FIRST, _next(16))), "turn 1: its prefix is longer than"),
        (_session(_thread(FIRST, _next(15, size=14))), "turn 1: its prefix is longer than"),
        (_session(_thread(FIRST, _next(1, ref=(0, 1)))), "turn 1: refers to a turn that is not before it"),
        (_session(_thread(FIRST, _next(1, ref=(1, 0)))), "turn 1: refers to a thread that is not before it"),
        (_session(_thread(FIRST, _next(1, ref=(0, -1)))), "turn 1: refers to a thread that is not before it"),
        (
            _session(_thread(_starting(1)), _thread(_next(1, ref=(0, 1)))),
            "thread 1, turn 0: refers to a turn that is not before it",
        ),
        (
            _session(_thread(Turn(input_tokens=9, output_tokens=1, prefix_tokens=1))),
            "turn 0: a prefix of nothing",
        ),
        (_session(_thread(FIRST, shared_key="k", shared_tokens=11)), "shares more than its first prompt"),
        (_session(_thread(FIRST, shared_tokens=1)), "shares a text without a key"),
        (
            _session(_thread(_starting(1)), _thread(_next(1), shared_key="k", shared_tokens=1)),
            "thread 1: opens with two texts",
        ),
        (_session(_thread(FIRST), _thread(FIRST)), "every thread but the first is started by one tool"),
        (_session(_thread(_starting(0))), "tool 'agent' starts no later thread"),
        (_session(_thread(_starting(2)), _thread(FIRST)), "tool 'agent' starts no later thread"),
        (
            _session(_thread(_starting(1), _starting(1)), _thread(FIRST)),
            "every thread but the first is started by one tool",
        ),
    ],
)
def test_what_is_not_is_refused(session, complaint):
    with pytest.raises(ValueError, match=complaint):
        check(session)


def test_a_session_tells_its_size():
    session = _session(_thread(_starting(1)), _thread(FIRST, _next(15)))
    assert (session.turns, session.peak_tokens) == (3, 21)
