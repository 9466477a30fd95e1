"""Block keys against prompts written out token by token."""

from hypothesis import given, settings
from hypothesis import strategies as st

from lab.workload.trace.content import ContentChain
from lab.workload.trace.format import Session, Thread, Turn, TurnRef, check
from tests.examples import examples
from tests.lab.workload.trace.oracle import refs_of, sessions, tokens_of

PAIRS = st.tuples(sessions("s"), sessions("t"))


def _whole(session, ref):
    return tokens_of(session, ref, output=session.threads[ref.thread].turns[ref.turn].output_tokens)


@settings(max_examples=examples(50))
@given(PAIRS, st.integers(1, 7), st.data())
def test_keys_are_equal_exactly_where_all_tokens_so_far_are(pair, block_size, data):
    chain = ContentChain(block_size)
    keys_of_tokens: dict[tuple, bytes] = {}
    order = data.draw(st.permutations([(s, ref) for s in pair for ref in refs_of(s)]))
    for session, ref in order:
        check(session)
        tokens = _whole(session, ref)
        content = chain.begin(session, ref)
        assert content.keys == chain.prompt_keys(session, ref)
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
