"""Outcomes as a simulation tells them, with what a test does not care about filled in."""

from gateway.domain.ids import ReplicaId
from lab.simulator.results import SessionOutcome, TurnOutcome
from lab.workload.trace.format import ServiceClass


def turn(session: str = "s", **fields) -> TurnOutcome:
    usual = {
        "thread": 0,
        "turn": 0,
        "tenant": "t",
        "replica": ReplicaId("sim-0"),
        "arrival_s": 0.0,
        "waited_s": 0.0,
        "began_s": 0.0,
        "first_token_s": 1.0,
        "end_s": 2.0,
        "prompt_tokens": 100,
        "cached_tokens": 0,
        "output_tokens": 10,
        "preemptions": 0,
        "refusals": 0,
    }
    return TurnOutcome(session=session, **{**usual, **fields})


def session(name: str = "s", **fields) -> SessionOutcome:
    usual = {
        "tenant": "t",
        "service_class": ServiceClass.REACTIVE,
        "agent_type": "",
        "arrival_s": 0.0,
        "final_first_token_s": 1.0,
        "end_s": 2.0,
        "isolated_s": 1.0,
        "deadline_s": None,
        "turns": 1,
        "failed": False,
    }
    return SessionOutcome(id=name, **{**usual, **fields})
