"""Sessions drawn by Hypothesis, and their prompts written out token by token, the slow and plain way."""

from hypothesis import strategies as st

from lab.workload.trace.format import Session, Thread, Tool, Turn, TurnRef

Token = tuple[object, ...]


def tokens_of(session: Session, ref: TurnRef, *, output: int = 0) -> list[Token]:
    """The turn's prompt with so much of its output, every token told apart from all that stand elsewhere."""
    thread = session.threads[ref.thread]
    turn = thread.turns[ref.turn]
    tokens: list[Token] = []
    if turn.prefix_of is not None:
        base = session.threads[turn.prefix_of.thread].turns[turn.prefix_of.turn]
        tokens = tokens_of(session, turn.prefix_of, output=base.output_tokens)[: turn.prefix_tokens]
    elif ref.turn == 0:
        tokens = [("shared", thread.shared_key, at) for at in range(thread.shared_tokens)]
    else:
        tokens = [("shared", turn.shared_key, at) for at in range(turn.shared_tokens)]
    tokens += [(session.id, ref, "in", at) for at in range(turn.input_tokens - len(tokens))]
    return tokens + [(session.id, ref, "out", at) for at in range(output)]


def refs_of(session: Session) -> list[TurnRef]:
    return [TurnRef(n, at) for n, thread in enumerate(session.threads) for at in range(len(thread.turns))]


@st.composite
def sessions(draw: st.DrawFn, id_: str = "s") -> Session:
    """Valid ones, small: prompts of up to 40 tokens, up to three threads."""
    count = draw(st.integers(1, 3))
    starters = [draw(st.integers(0, child - 1)) for child in range(1, count)]
    before: list[tuple[TurnRef, int]] = []
    threads = []
    for number in range(count):
        turns = []
        shared = draw(st.integers(0, 20))
        for at in range(draw(st.integers(1, 4))):
            base, longest = draw(st.sampled_from([(None, 0), *before]))
            prefix = draw(st.integers(0, longest))
            own = draw(st.integers(0, 20)) if at and base is None else 0
            results = draw(st.none() | st.integers(0, 5))
            least = max(1, prefix, shared if at == 0 else 0) + own + (results or 0)
            tools = tuple(
                Tool(name="agent", starts_thread=child)
                for child, starter in enumerate(starters, start=1)
                if starter == number and at == 0
            )
            turn = Turn(
                input_tokens=draw(st.integers(least, least + 20)),
                output_tokens=draw(st.integers(1, 20)),
                prefix_of=base,
                prefix_tokens=prefix,
                shared_key=draw(st.sampled_from("ab")) if own else None,
                shared_tokens=own,
                result_tokens=results,
                tools=tools,
            )
            if at == 0 and base is not None:
                shared = 0
            turns.append(turn)
            before.append((TurnRef(number, at), turn.input_tokens + turn.output_tokens))
        key = draw(st.sampled_from("ab"))
        threads.append(Thread(turns=tuple(turns), shared_key=key, shared_tokens=shared))
    return Session(id=id_, threads=tuple(threads))
