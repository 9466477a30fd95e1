import json

import pytest

from gateway.domain.ids import SessionId, TenantId
from gateway.mcp import sessions as module
from gateway.mcp.sessions import McpSession, McpSessions

T, U, A, B = TenantId("t"), TenantId("u"), SessionId("a"), SessionId("b")


def page(*tools: object, **more: object) -> bytes:
    return json.dumps({"tools": tools, **more}).encode()


def reads(name: str, **more: object) -> dict[str, object]:
    return {"name": name, "annotations": {"readOnlyHint": True}, **more}


def session() -> McpSession:
    return McpSession("tools", T, "s1")


@pytest.mark.parametrize(
    ("tool", "only_reads"),
    [
        (reads("x"), True),
        ({"name": "x"}, False),
        ({"name": "x", "annotations": None}, False),
        ({"name": "x", "annotations": {}}, False),
        ({"name": "x", "annotations": {"readOnlyHint": False}}, False),
        ({"name": "x", "annotations": {"readOnlyHint": True, "destructiveHint": True}}, False),
        (reads("x", execution={"taskSupport": "required"}), False),
        (reads("x", execution={"taskSupport": "optional"}), True),
    ],
)
def test_a_tool_reads_only_if_its_server_says_so_and_nothing_else(tool, only_reads):
    mcp = session()
    mcp.listed(b"", page(tool))
    assert mcp.tools == {"x": only_reads}


def test_what_cannot_be_read_reads_nothing():
    mcp = session()
    mcp.listed(b"{}", page(reads("x"), {"name": 1}, {"name": "y", "annotations": {"readOnlyHint": "yes"}}))
    assert mcp.tools == {"x": True}
    mcp.listed(b"{}", b"[]")
    assert mcp.tools == {}


def test_pages_add_up_and_a_new_listing_replaces_the_old():
    mcp = session()
    mcp.listed(b"{}", page(reads("x"), nextCursor="2"))
    mcp.listed(b'{"cursor":"2"}', page(reads("y"), {"name": "x"}))
    assert mcp.tools == {"x": False, "y": True}
    mcp.listed(b"", page({"name": "y"}))
    assert mcp.tools == {"y": False}


def test_tools_are_bounded(monkeypatch):
    monkeypatch.setattr(module, "_MAX_TOOLS", 1)
    mcp = session()
    mcp.listed(b"", page(reads("x"), reads("y"), {"name": "x"}))
    assert mcp.tools == {"x": False}


def test_a_tool_is_meant_by_its_whole_name_with_the_agent_s_prefix():
    mcp = session()
    mcp.agents[A] = "mcp__t__"
    mcp.listed(b"", page(reads("read"), reads("a.b"), {"name": "a_b"}))
    assert mcp.tool_shown_as("mcp__t__read", A) == "read"
    for shown in ("read", "mcp__z__read", "mcp__t__reads", "mcp__t__more_read", "mcp__t__a_b"):
        assert mcp.tool_shown_as(shown, A) is None, shown
    assert mcp.tool_shown_as("mcp__t__read", B) is None


def test_sessions_are_their_tenant_s_and_need_an_id():
    all_ = McpSessions()
    assert all_.known("x", T, "") is None and all_.get("x", T, "s") is None
    mine = all_.known("x", T, "s")
    assert mine is not None and all_.known("x", T, "s") is all_.get("x", T, "s") is mine
    assert all_.get("x", U, "s") is None and all_.get("y", T, "s") is None


def test_an_agent_s_newest_session_of_each_server():
    all_ = McpSessions()
    old, new, other = (all_.known(server, T, name) for server, name in (("x", "1"), ("x", "2"), ("y", "3")))
    assert old is not None and new is not None and other is not None
    for mcp in (old, new, other):
        all_.used_by(mcp, A, "p_")
    assert all_.of_agent(T, A) == [new, other] and all_.of_agent(U, A) == all_.of_agent(T, B) == []
    all_.forget("x", T, "1")
    assert all_.of_agent(T, A) == [new, other]
    all_.forget("x", T, "2")
    all_.forget("y", T, "3")
    all_.forget("y", T, "3")
    assert all_.of_agent(T, A) == [] and len(all_._of_agents) == 0


def test_what_is_remembered_is_bounded(monkeypatch):
    monkeypatch.setattr(module, "_MAX_SESSIONS", 2)
    monkeypatch.setattr(module, "_MAX_AGENTS", 1)
    all_ = McpSessions()
    first = all_.known("x", T, "1")
    assert first is not None
    all_.used_by(first, A, "")
    all_.used_by(first, B, "")
    assert list(first.agents) == [B] and all_.of_agent(T, A) == [] and all_.of_agent(T, B) == [first]
    all_.known("x", T, "2")
    all_.known("x", T, "3")
    assert all_.get("x", T, "1") is None and all_.of_agent(T, B) == []


def test_it_may_be_logged():
    mcp = session()
    mcp.lines = b"Authorization: Bearer secret"
    assert "secret" not in repr(mcp) and "tools" in repr(mcp)
