"""Session affinity as nginx has it: who names a session stays, all others go in turn."""

from multidict import CIMultiDict

from demo.balancer import Balancer


def test_a_named_session_stays_and_new_ones_go_in_turn():
    balancer = Balancer(["a", "b"])
    first, second = {"session-id": "1"}, {"x-session-affinity": "2"}
    assert [balancer.choose(each) for each in (first, second, first, second, first)] == list("ababa")


def test_requests_without_a_name_go_in_turn():
    balancer = Balancer(["a", "b"])
    assert [balancer.choose(CIMultiDict({"Session-Id": ""})) for _ in range(4)] == list("abab")


def test_names_are_read_as_agents_write_them():
    balancer = Balancer(["a", "b"])
    named = CIMultiDict({"X-Claude-Code-Session-Id": "1"})
    assert balancer.choose(named) == balancer.choose(named) == "a"
