"""Where conversations live: what is remembered, and that the sums are right."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.decision import SessionRef, SessionSource
from gateway.domain.ids import ReplicaId, SessionId, ThreadId
from gateway.routing.homes import Homes


def turn(session: str, thread: str = "1") -> SessionRef:
    return SessionRef(
        session=SessionId(session), thread=ThreadId(thread), source=SessionSource.NEW, confidence=0.5
    )


def test_memory_is_bounded_and_the_oldest_goes_first():
    homes = Homes(2)
    for name in ("s", "t", "s", "u"):
        homes.settle(turn(name), ReplicaId("a"), now=0.0)
    assert homes.sessions_at == {"a": 2}
    assert homes.find(turn("t")) is None and homes.find(turn("s")) == "a"


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["settle", "end", "silence"]),
            st.sampled_from("stuv"),
            st.sampled_from("12"),
            st.sampled_from("abc"),
        ),
        max_size=60,
    )
)
def test_the_books_balance(steps):
    homes, now = Homes(5), 0.0
    for what, session, thread, replica in steps:
        match what:
            case "end":
                homes.session_ended(SessionId(session))
            case "silence":
                now += 200.0
                homes.pass_time(now=now)
            case _:
                homes.settle(turn(session, thread), ReplicaId(replica), now=now)
        assert len(homes._homes) <= 5
        counted = Counter(
            homes._homes[first.conversation] for first in homes._firsts.values() if first.is_there
        )
        assert homes.sessions_at == counted
        for name, first in homes._firsts.items():
            assert all((name, thread) in homes._homes for thread in first.others or ())
