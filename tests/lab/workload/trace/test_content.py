"""What a workload may say, and what it says of content: against prompts written out token by token."""

from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lab.workload.trace.content import ContentChain
from lab.workload.trace.cutting import cut
from lab.workload.trace.format import Session, Thread, Tool, Turn, TurnRef, check
from lab.workload.trace.shared_blocks import BlockTree
from tests.examples import examples
from tests.lab.workload.trace.made import chain, session
from tests.lab.workload.trace.oracle import refs_of, sessions, tokens_of


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


PAIRS = st.tuples(sessions("s"), sessions("t"))


def _whole(session, ref):
    return tokens_of(session, ref, output=session.threads[ref.thread].turns[ref.turn].output_tokens)


@settings(max_examples=examples(50))
@given(PAIRS, st.integers(1, 7), st.data())
def test_keys_are_equal_exactly_where_all_tokens_so_far_are(pair, block_size, data):
    chain = ContentChain(block_size)
    keys_of_tokens: dict[tuple, bytes] = {}
    order = data.draw(st.permutations([(s, ref) for s in pair for ref in refs_of(s)]))
    for of, ref in order:
        check(of)
        tokens = _whole(of, ref)
        content = chain.begin(of, ref)
        assert content.keys == chain.prompt_keys(of, ref)
        generated = len(tokens) - content.tokens
        while generated:
            step = data.draw(st.integers(1, generated))
            before = list(content.keys)
            assert [*before, *content.extend(step)] == content.keys
            generated -= step
        assert content.tokens == len(tokens)
        assert len(content.keys) == len(tokens) // block_size
        for number, key in enumerate(content.keys, start=1):
            assert keys_of_tokens.setdefault(tuple(tokens[: number * block_size]), key) == key
    assert len(set(keys_of_tokens.values())) == len(keys_of_tokens)


@given(sessions(), st.integers(1, 7))
def test_what_is_remembered_only_saves_time(session, block_size):
    chain = ContentChain(block_size)
    for ref in refs_of(session):
        content = chain.begin(session, ref)
        content.extend(session.threads[ref.thread].turns[ref.turn].output_tokens)
        fresh = ContentChain(block_size).begin(session, ref)
        fresh.extend(session.threads[ref.thread].turns[ref.turn].output_tokens)
        assert content.keys == fresh.keys


LONG = Session(
    id="long",
    threads=(
        Thread(
            turns=(
                Turn(input_tokens=100_000, output_tokens=100),
                Turn(input_tokens=101_000, output_tokens=10, prefix_of=TurnRef(0, 0), prefix_tokens=100_100),
            )
        ),
    ),
)


def test_a_turn_takes_over_the_keys_of_the_one_it_builds_on():
    chain = ContentChain(64)
    first = chain.begin(LONG, TurnRef(0, 0))
    first.extend(100)
    second = chain.begin(LONG, TurnRef(0, 1))
    assert len(first.keys) == 100_100 // 64
    assert all(a is b for a, b in zip(first.keys, second.keys, strict=False))
    assert len(second.keys) == 101_000 // 64


def test_a_forgotten_session_takes_no_memory_and_comes_back_the_same():
    chain = ContentChain(64)
    keys = chain.begin(LONG, TurnRef(0, 1)).keys
    assert chain.sessions == 1
    chain.forget("long")
    chain.forget("long")
    assert chain.sessions == 0
    assert chain.prompt_keys(LONG, TurnRef(0, 1)) == keys
    assert chain.sessions == 0


def test_ids_cannot_be_mistaken_for_one_another():
    def keys(id_, key=None, shared=0):
        turn = Turn(input_tokens=8, output_tokens=1)
        thread = Thread(turns=(turn,), shared_key=key, shared_tokens=shared)
        return ContentChain(8).prompt_keys(Session(id=id_, threads=(thread,)), TurnRef(0, 0))

    assert keys("a", "turn 0 0 in b", 8) != keys("b")
    assert keys("a", "x", 8) == keys("b", "x", 8) != keys("b", "y", 8)


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


PROMPTS = st.lists(st.lists(st.integers(0, 2), max_size=6), max_size=8)


def _common(one, other):
    count = 0
    while count < min(len(one), len(other)) and one[count] == other[count]:
        count += 1
    return count


@given(PROMPTS, st.data())
def test_the_longest_shared_beginning_is_found(prompts, data):
    tree: BlockTree[int] = BlockTree()
    nodes: list[Sequence[int]] = []
    for at, blocks in enumerate(prompts):
        before = prompts[:at]
        known = 0
        if at:
            known = data.draw(st.integers(0, _common(blocks, prompts[at - 1])))
        shared, path = tree.add(at, blocks[known:], behind=nodes[-1][:known] if at else ())
        nodes.append(path)
        assert len(path) == len(blocks)
        longest = max((_common(blocks, other) for other in before), default=0)
        assert (shared.blocks if shared is not None else 0) == longest
        if shared is not None:
            owner = before[shared.owner]
            assert _common(owner, blocks) == longest
            ends_there = [n for n, other in enumerate(before) if other == blocks[:longest]]
            assert shared.is_extension == bool(ends_there)
            if ends_there:
                assert shared.owner == ends_there[-1]
