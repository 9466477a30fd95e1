"""A session that moves takes along what is known of it, and the engine that it leaves is told."""

from gateway.core import events as ev
from gateway.core.commands import Dispatch
from gateway.domain.decision import PlacementReason
from gateway.domain.ids import ReplicaId
from gateway.domain.request import Usage
from tests.core.playbook import Playbook, arrived, down, finished, first_token, started, stated, up
from tests.workflow.test_hints import read

USAGE = Usage(prompt_tokens=5000, cached_tokens=100, output_tokens=20)


class Fleet(Playbook):
    """Engines that follow hints; a session lives on `a`, whose tools run."""

    def __init__(self) -> None:
        super().__init__(replicas="", have_homes=True)
        self.joins("a")
        self.asks("s-1").answers("s-1", "call-1")
        self.joins("b")
        self.hints.clear()

    def joins(self, name: str) -> None:
        _ = self >> up(name, follows_hints=True)

    def asks(self, turn: str, *results: str) -> "Fleet":
        sent = self.arrives(turn, explicit=stated("s"), echoed_ids=results, tool_result_ids=results)
        assert isinstance(sent, Dispatch)
        self.sent = sent
        _ = self >> started(turn) >> first_token(turn)
        return self

    def answers(self, turn: str, *calls: str) -> "Fleet":
        _ = self >> finished(turn, *calls, usage=USAGE)
        return self

    def drains(self, name: str, *, is_draining: bool = True) -> "Fleet":
        _ = self >> ev.ReplicaDrained(ReplicaId(name), is_draining=is_draining)
        return self


def test_engines_are_told_where_it_goes_and_that_it_left():
    fleet = Fleet().drains("a").asks("s-2", "call-1")
    assert (fleet.sent.placement.replica, fleet.sent.placement.reason) == ("b", PlacementReason.HOME_IS_GONE)
    [gone] = [told for told in fleet.hints if told.replica == "a"]
    released, with_request = read(gone.hint), read(fleet.sent.hint)
    assert (released.retain_s, released.reuse, released.thread) == (0.0, 0.0, with_request.thread)
    assert released.seq < with_request.seq
    fleet.drains("a", is_draining=False)
    fleet.answers("s-2", "call-2").asks("s-3", "call-2")
    others = [told for told in fleet.hints if told is not gone]
    assert others and all(told.replica == "b" and read(told.hint).retain_s for told in others)


def test_an_engine_is_not_told_that_a_conversation_left_which_was_never_there():
    fleet = Fleet().drains("a").asks("s-2", "call-1").answers("s-2", "call-2").drains("a", is_draining=False)
    fleet.hints.clear()
    sub_agent = arrived("sub", explicit=stated("s", thread="sub"))
    _ = fleet >> down("b") >> sub_agent
    assert not fleet.hints
    fleet.take()
