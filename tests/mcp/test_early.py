from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from gateway.domain.ids import RequestId, SessionId, TenantId
from gateway.mcp import early as module
from gateway.mcp.calls import Asked
from gateway.mcp.early import EarlyCall, EarlyCalls
from gateway.mcp.sessions import McpSession

T, A = TenantId("t"), SessionId("a")


def session() -> McpSession:
    mcp = McpSession("x", T, "s1", tools={"read": True, "seek": True, "write": False})
    mcp.agents[A] = "x__"
    return mcp


def asked(name: str = "x__read", turn: str = "r1", key: bytes = b"k") -> Asked:
    return Asked(T, A, RequestId(turn), "c", name, key)


def made(
    calls: EarlyCalls, mcp: McpSession, tool: str = "read", turn: str = "r1", key: bytes = b"k"
) -> EarlyCall:
    early = EarlyCall(asked(f"x__{tool}", turn, key), mcp, tool, "id")
    calls.made(early)
    return early


def test_the_one_for_a_call_is_claimed_by_that_call():
    calls, mcp = EarlyCalls(), session()
    first, second = made(calls, mcp), made(calls, mcp)
    second.asked.id = "d"
    assert calls.claim(mcp, "read", b"k", "d") is second and calls.claim(mcp, "read", b"k", "d") is first


def test_waste_stops_a_tool_until_one_is_wanted():
    calls, mcp = EarlyCalls(), session()
    last = made(calls, mcp, key=b"last")
    for _ in range(3):
        assert calls.has_room(asked(), mcp, "read")
        assert calls.drop(made(calls, mcp), is_waste=True)
    assert not calls.has_room(asked(), mcp, "read") and calls.has_room(asked(), mcp, "seek")
    assert calls.claim(mcp, "read", b"last") is last
    assert calls.has_room(asked(), mcp, "read")


def test_a_turn_and_a_tenant_have_so_many(monkeypatch):
    monkeypatch.setattr(module, "_MAX_OF_TURN", 2)
    monkeypatch.setattr(module, "_MAX_OF_TENANT", 3)
    calls, mcp = EarlyCalls(), session()
    made(calls, mcp), made(calls, mcp)
    assert not calls.has_room(asked(), mcp, "read") and calls.has_room(asked(turn="r2"), mcp, "read")
    third = made(calls, mcp, turn="r2")
    assert not calls.has_room(asked(turn="r3"), mcp, "read")
    assert calls.turn_over(RequestId("r2"), now=7.0) == [third] and third.turn_over_s == 7.0
    assert calls.of_session(mcp) == list(calls) and calls.of_session(session()) == []


class Books(RuleBasedStateMachine):
    """Nothing is left of calls that are claimed or dropped, and none is given twice."""

    def __init__(self) -> None:
        super().__init__()
        self.calls, self.mcp = EarlyCalls(), session()
        self.there: list[EarlyCall] = []

    @rule(turn=st.sampled_from("ab"), key=st.sampled_from((b"1", b"2")))
    def is_made(self, turn: str, key: bytes) -> None:
        self.there.append(made(self.calls, self.mcp, turn=turn, key=key))

    @rule(key=st.sampled_from((b"1", b"2")))
    def is_claimed(self, key: bytes) -> None:
        expected = next((early for early in self.there if early.asked.key == key), None)
        assert self.calls.claim(self.mcp, "read", key) is expected
        if expected is not None:
            self.there.remove(expected)

    @rule(data=st.data())
    def is_dropped(self, data: st.DataObject) -> None:
        if self.there:
            early = data.draw(st.sampled_from(self.there))
            assert self.calls.drop(early, is_waste=data.draw(st.booleans()))
            self.there.remove(early)

    @rule(turn=st.sampled_from("ab"))
    def turn_is_over(self, turn: str) -> None:
        of_turn = [early for early in self.there if early.asked.turn == turn]
        assert self.calls.turn_over(RequestId(turn), now=1.0) == of_turn

    @invariant()
    def the_books_balance(self) -> None:
        assert sorted(map(id, self.calls)) == sorted(map(id, self.there))
        assert self.calls._of_tenant.total() == len(self.there)
        if not self.there:
            assert not (self.calls._by or self.calls._of_turn or self.calls._of_tenant)


TestBooks = Books.TestCase
