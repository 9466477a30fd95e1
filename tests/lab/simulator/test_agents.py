"""What agents tell the gateway of how urgent they are."""

from typing import Any

import pytest

from gateway.domain.ids import SessionId
from gateway.domain.request import Claims
from lab.simulator.agents import Agent, Stage
from lab.simulator.kernel import Kernel
from lab.workload.trace.format import ServiceClass, Session, Thread, Turn, TurnRef


def agent(*, says_when_over: bool = True, **fields: Any) -> Agent:
    nobody: Any = None
    kernel = Kernel()
    stage = Stage(
        kernel=kernel, gateway=nobody, content=nobody, audience=nobody, says_when_over=says_when_over
    )
    thread = Thread(turns=(Turn(input_tokens=10, output_tokens=1, pause_s=1e6),))
    made = Agent(Session(id="s", threads=(thread,), **fields), nobody, stage)
    kernel.at(5.0, made.start)
    kernel.at(105.0, kernel.stop)
    kernel.run()
    return made


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, None),
        ({"service_class": ServiceClass.PROACTIVE}, Claims(service_class="proactive")),
        ({"deadline_s": 130.0}, Claims(deadline_s=30.0)),
        ({"deadline_s": 50.0}, Claims(deadline_s=0.001)),
    ],
)
def test_a_workload_says_class_and_deadline(fields, expected):
    assert agent(**fields).claims() == expected


@pytest.mark.parametrize("says", [True, False])
def test_who_says_nothing_of_its_end_says_it_neither_with_the_last_turn_nor_later(says):
    made = agent(says_when_over=says)
    made.known_as = SessionId("s-1")
    assert made.is_final(TurnRef(0, 0)) is made.must_be_finished is says
