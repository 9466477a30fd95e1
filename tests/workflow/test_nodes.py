"""Nodes: exact tool sets by number."""

from gateway.workflow import nodes
from gateway.workflow.nodes import END, OTHER, TEXT, Nodes, tool_set


def test_a_set_is_a_set():
    assert tool_set(["b", "a", "b"]) == ("a", "b") and tool_set([]) == ()
    assert tool_set(["x" * 100]) == ("x" * 64,) and len(tool_set(map(str, range(100)))) == 16


def test_numbers_and_labels(monkeypatch):
    known = Nodes()
    assert known.number(()) == TEXT and known.number(("a", "b")) == 3 == known.number(("a", "b"))
    assert known.tools(3) == ("a", "b") and known.label(3) == "a + b" and known.label(END) == "END"
    monkeypatch.setattr(nodes, "MAX_NODES", 4)
    assert known.number(("c",)) == OTHER and len(known) == 4
