from gateway.domain.ids import SessionId, TenantId
from gateway.mcp import sessions as module
from gateway.mcp.sessions import McpSession, McpSessions

T, U, A, B = TenantId("t"), TenantId("u"), SessionId("a"), SessionId("b")


def test_an_agent_s_sessions_are_its_tenant_s_and_need_an_id():
    sessions = McpSessions()
    for name in ("s", ""):
        sessions.used_by(McpSession("x", T, name), A)
    assert list(sessions.agents_of(McpSession("x", T, "s"))) == [A]
    assert not any(
        sessions.agents_of(McpSession(*each)) for each in (("x", T, ""), ("x", U, "s"), ("y", T, "s"))
    )
    sessions.forget(McpSession("x", T, "s"))
    sessions.forget(McpSession("x", T, "s"))
    assert not sessions.agents_of(McpSession("x", T, "s"))


def test_what_is_remembered_is_bounded(monkeypatch):
    monkeypatch.setattr(module, "_MAX_AGENTS", 1)
    sessions = McpSessions()
    for agent in (A, B):
        sessions.used_by(McpSession("x", T, "0"), agent)
    assert list(sessions.agents_of(McpSession("x", T, "0"))) == [B]
    for number in range(1, module._MAX_SESSIONS + 1):
        sessions.used_by(McpSession("x", T, str(number)), A)
    assert not sessions.agents_of(McpSession("x", T, "0")) and sessions.agents_of(McpSession("x", T, "1"))
