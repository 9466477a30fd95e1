"""Agent types: when one is known, and what the young ones share."""

from typing import Any

import msgspec

from gateway.domain.ids import TenantId
from gateway.domain.request import Manner
from gateway.workflow.agent_types import AgentType, AgentTypes, AgentTypesConfig
from gateway.workflow.nodes import TEXT
from gateway.workflow.walk import Walk


def types(**settings: Any) -> AgentTypes:
    return AgentTypes(msgspec.convert(settings, AgentTypesConfig))


def test_types_are_told_apart_by_prompt_client_and_place():
    one = AgentType(1, 2)
    assert len({one.key, AgentType(1, 3).key, AgentType(2, 2).key, AgentType(1, 2, True).key}) == 4
    assert one.family == AgentType(9, 2).family != AgentType(9, 2, True).family


def test_a_type_is_known_after_tasks_or_steps():
    known = types(min_tasks=2, min_steps=10)
    graph = known.graph(AgentType(1, 2))
    assert not known.is_known(graph) and known.graph(AgentType(1, 2)) is graph
    graph.tasks = 2
    assert known.is_known(graph)
    graph.tasks, graph.steps = 0, 10
    assert known.is_known(graph)


def test_a_family_has_one_numbering_and_is_known_together():
    known = types(min_tasks=2, min_steps=10)
    graph, other = known.graph(AgentType(1, 2)), known.graph(AgentType(5, 2))
    stranger = known.graph(AgentType(1, 3))
    assert graph is not other and graph.nodes is other.nodes is not stranger.nodes
    for _ in range(2):
        graph.saw_end(3)
    assert known.is_known(other) and not known.is_known(stranger)


def test_memory_is_bounded():
    known = types(max_types=4)
    for number in range(20):
        known.graph(AgentType(number, number))
    assert len(known) == 4 and len(known.items()) == 4


def test_types_of_two_tenants_share_nothing():
    known = types()
    one, other = (known.graph(AgentType(1, 2, owner=TenantId(name))) for name in ("one", "other"))
    assert one is not other and one.kin is not other.kin and one.nodes is not other.nodes
    assert one._mixture is not other._mixture and one.kin._world is not other.kin._world


def test_who_has_most_types_loses_its_own_first():
    known = types(max_types=10)
    quiet = known.graph(AgentType(1, 2, owner=TenantId("quiet")))
    for number in range(100):
        known.graph(AgentType(number, 2, owner=TenantId("loud")))
    assert known.graph(AgentType(1, 2, owner=TenantId("quiet"))) is quiet and len(known) == 10


def test_types_that_remember_much_count_as_several():
    known = types(max_types=10)
    small = known.graph(AgentType(1, 2, owner=TenantId("quiet")))
    for number in range(100):
        kind = AgentType(number, 2, owner=TenantId("loud"))
        walk = Walk()
        for step in range(200):  # ever new words, so every step is in contexts of its own
            graph = known.graph(kind)
            graph.learn(graph.forecast(walk), TEXT)
            walk.step(TEXT, Manner(opening=step, lead=step, close=step), is_asked=False)
    assert sum(graph.contexts for _, graph in known.items()) <= 10 * 1024
    assert known.graph(AgentType(1, 2, owner=TenantId("quiet"))) is small
