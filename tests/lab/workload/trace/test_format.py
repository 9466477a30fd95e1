"""What a workload file may say, and what its check refuses."""

import msgspec
import pytest
from hypothesis import given

from lab.workload.trace.format import Session, Thread, Tool, Turn, TurnRef, check
from tests.lab.workload.trace.oracle import sessions


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
        (
            _session(_thread(FIRST, msgspec.structs.replace(_next(15), shared_key="a", shared_tokens=1))),
            "turn 1: shares a text without a key, or opens with two texts",
        ),
        (
            _session(_thread(FIRST, Turn(input_tokens=9, output_tokens=1, shared_tokens=1))),
            "turn 1: shares a text without a key, or opens with two texts",
        ),
        (
            _session(
                _thread(
                    FIRST,
                    Turn(input_tokens=9, output_tokens=1, shared_key="a", shared_tokens=5, result_tokens=5),
                )
            ),
            "turn 1: its parts are longer than its prompt",
        ),
        (
            _session(_thread(Turn(input_tokens=9, output_tokens=1, shared_key="a"))),
            "turn 0: what a first prompt opens with is its thread's",
        ),
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


ASKS = Turn(input_tokens=10, output_tokens=5)
READS = Turn(input_tokens=30, output_tokens=5, shared_key="reads", shared_tokens=8, result_tokens=7)


def test_a_turn_tells_what_is_known_of_it_while_tools_run():
    assert (READS.known_tokens, _next(12).known_tokens) == (23, 12)


def test_a_session_tells_under_which_text_each_turn_speaks():
    session = _session(
        _thread(ASKS, READS, _next(6, (0, 1)), _next(15, (0, 0)), shared_key="asks", shared_tokens=4)
    )
    check(session)
    told = [session.spoken_under(TurnRef(0, at)) for at in range(4)]
    assert told == [("asks", 4), ("reads", 8), ("reads", 6), ("asks", 4)]
    assert [session.opening(TurnRef(0, at))[0] for at in range(4)] == ["asks", "reads", None, None]


def test_a_session_tells_its_size():
    session = _session(_thread(_starting(1)), _thread(FIRST, _next(15)))
    assert (session.turns, session.peak_tokens) == (3, 21)
