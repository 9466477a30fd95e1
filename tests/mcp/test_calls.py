from gateway.domain.ids import RequestId, SessionId, TenantId
from gateway.mcp import calls as module
from gateway.mcp.calls import RequestedCall, RequestedCalls

T, U = TenantId("t"), TenantId("u")
KEY, OTHER = b"k" * 16, b"o" * 16


class Book:
    def __init__(self) -> None:
        self.closed: set[str] = set()
        self.asked = RequestedCalls(lambda asked: asked.id not in self.closed)

    def add(
        self, name: str, call_id: str, *, turn: str = "r1", session: str = "s", tenant=T, key=KEY
    ) -> None:
        self.asked.add(RequestedCall(tenant, SessionId(session), RequestId(turn), call_id, name, key))

    def join(self, tool: str, *known: str, tenant=T, key=KEY, call_id=None) -> str | None:
        agents = {SessionId(each) for each in known}
        found = self.asked.join(tenant, tool, key, agents, call_id=call_id)
        return found.id if found is not None else None


def test_a_call_is_joined_by_tool_arguments_and_tenant_and_once():
    book = Book()
    book.add("mcp__x__read", "c1")
    assert book.join("write") is book.join("read", key=OTHER) is book.join("read", tenant=U) is None
    assert book.join("read") == "c1"
    assert book.join("read") is None and len(book.asked._all) == 0


def test_equal_calls_of_a_turn_are_joined_in_order():
    book = Book()
    for call_id in ("c1", "c2", "c3"):
        book.add("read", call_id)
    assert [book.join("read") for _ in range(4)] == ["c1", "c2", "c3", None]


def test_of_a_newer_turn_comes_first():
    book = Book()
    book.add("read", "old")
    book.add("read", "c1", turn="r2")
    book.add("read", "c2", turn="r2")
    assert [book.join("read") for _ in range(3)] == ["c1", "c2", "old"]


def test_none_is_joined_whose_result_came():
    book = Book()
    book.add("read", "c1")
    book.closed.add("c1")
    assert book.join("read") is None and len(book.asked._all) == 0


def test_of_two_agents_calls_that_of_the_known_one_is_meant():
    book = Book()
    book.add("read", "c1", session="s")
    book.add("read", "c2", session="z")
    assert book.join("read") is None
    assert book.join("read", "s", "z") is None
    assert book.join("read", "z") == "c2"
    assert book.join("read", "z") == "c1", "the only one that is left"


def test_the_call_that_the_agent_names_is_meant_if_it_is_there():
    book = Book()
    for call_id, session in (("c1", "s"), ("c2", "s"), ("c3", "z")):
        book.add("read", call_id, session=session)
    assert book.join("read", "s", call_id="c3") == "c3"
    assert book.join("read", call_id="c2") == "c2"
    assert book.join("write", call_id="c1") is None, "it is another tool's"
    assert book.join("read", call_id="else") == "c1"


def test_what_is_kept_is_bounded_and_a_tenant_pushes_out_its_own(monkeypatch):
    monkeypatch.setattr(module, "_MAX_ALIKE", 2)
    book = Book()
    for call_id in ("c1", "c2", "c3"):
        book.add("read", call_id)
    assert [book.join("read") for _ in range(3)] == ["c2", "c3", None]
    monkeypatch.setattr(module, "_MAX_REQUESTED", 3)
    book = Book()
    book.add("read", "u1", tenant=U)
    for number in range(9):
        book.add("read", f"c{number}", key=bytes([number]) * 16)
    assert len(book.asked._all) == 3 and book.join("read", tenant=U) == "u1"
    assert book.join("read", key=bytes([8]) * 16) == "c8" and book.join("read", key=bytes([1]) * 16) is None
