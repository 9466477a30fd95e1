"""Shorter sessions: valid, and what they say of shared content is still true."""

from hypothesis import given
from hypothesis import strategies as st

from lab.workload.trace.cutting import cut
from lab.workload.trace.format import Session, Thread, Tool, Turn, TurnRef, check
from tests.lab.workload.trace.made import chain, session
from tests.lab.workload.trace.oracle import sessions, tokens_of


@given(sessions(), st.data())
def test_a_cut_session_is_valid_and_claims_no_more_than_was_shared(whole, data):
    lengths = [data.draw(st.integers(0, len(thread.turns))) for thread in whole.threads]
    short = cut(whole, lengths)
    assert (short is None) == (lengths[0] == 0)
    if short is None:
        return
    check(short)
    kept = [n for n, thread in enumerate(whole.threads) if _has_kept_start(whole, lengths, n)]
    assert len(kept) == len(short.threads)
    for number, (old, thread) in enumerate(zip(kept, short.threads, strict=True)):
        assert len(thread.turns) == lengths[old]
        for at, turn in enumerate(thread.turns):
            before = whole.threads[old].turns[at]
            assert (turn.input_tokens, turn.output_tokens) == (before.input_tokens, before.output_tokens)
            if turn.prefix_of is not None:
                base = TurnRef(kept[turn.prefix_of.thread], turn.prefix_of.turn)
                output = whole.threads[base.thread].turns[base.turn].output_tokens
                mine, theirs = tokens_of(whole, TurnRef(old, at)), tokens_of(whole, base, output=output)
                assert mine[: turn.prefix_tokens] == theirs[: turn.prefix_tokens]
            if before.prefix_of is not None and before.prefix_of.thread == old:
                assert turn.prefix_of == TurnRef(number, before.prefix_of.turn)
                assert turn.prefix_tokens == before.prefix_tokens


def _has_kept_start(whole, lengths, number):
    if not lengths[number]:
        return False
    if number == 0:
        return True
    for parent, thread in enumerate(whole.threads[:number]):
        for turn in thread.turns[: lengths[parent]]:
            if any(tool.starts_thread == number for tool in turn.tools):
                return _has_kept_start(whole, lengths, parent)
    return False


def _cut(whole, *lengths):
    short = cut(whole, lengths)
    assert short is not None
    return short


def test_the_last_turn_asks_for_no_tool_that_nobody_waits_for():
    short = _cut(session("s", 100, 120, 140), 2)
    assert [len(turn.tools) for turn in short.threads[0].turns] == [1, 0]


def _with_child(*, turns_behind):
    starts = Turn(
        input_tokens=5,
        output_tokens=5,
        tools=(Tool(name="agent", starts_thread=1, is_detached=True), Tool(name="other")),
    )
    behind = [Turn(input_tokens=9, output_tokens=1) for _ in range(turns_behind)]
    child = Thread(turns=(Turn(input_tokens=7, output_tokens=1), *chain(7)))
    return Session(id="s", threads=(Thread(turns=(starts, *behind)), child))


def test_a_call_whose_thread_is_cut_away_is_a_tool():
    short = _cut(_with_child(turns_behind=1), 2, 0)
    assert short.threads[0].turns[0].tools == (Tool(name="agent"), Tool(name="other"))
    assert len(short.threads) == 1
    assert _cut(_with_child(turns_behind=0), 1, 0).threads[0].turns[0].tools == ()
