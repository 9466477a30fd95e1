"""A server's front serves one request after the other."""

from lab.simulator.engine.front import Front, FrontCosts
from lab.simulator.engine.turn import EngineTurn
from lab.simulator.kernel import Kernel
from lab.workload.trace.format import Session, Thread, Turn, TurnRef


class Engine:
    """Behind a front, to which turns of 100 tokens go at these times."""

    def __init__(self, costs: FrontCosts, *times_s: float) -> None:
        self.kernel = Kernel()
        self.front = Front(self, costs, self.kernel)
        session = Session(id="s", threads=(Thread(turns=(Turn(input_tokens=100, output_tokens=1),)),))
        for number, at_s in enumerate(times_s, start=1):
            turn = EngineTurn(number=number, session=session, ref=TurnRef(0, 0), keys=[], submitted_s=at_s)
            self.kernel.at(at_s, self.front.submit, turn)
        self.seen: list[tuple[int, float]] = []
        self.turns = 0

    def submit(self, turn: EngineTurn) -> None:
        self.seen.append((turn.number, self.kernel.now))

    def abort(self, number: int) -> None:
        self.seen.append((-number, self.kernel.now))

    def hint(self, text: str) -> None:
        self.hinted = text


def test_requests_reach_the_engine_one_by_one():
    engine = Engine(FrontCosts(request_s=1.0, prompt_token_s=0.01), 0.0, 0.5, 9.0)
    engine.kernel.run()
    engine.front.hint("held")
    assert engine.hinted == "held"
    assert engine.seen == [(1, 2.0), (2, 4.0), (3, 11.0)]


def test_what_is_aborted_never_reaches_the_engine_or_is_aborted_there():
    engine = Engine(FrontCosts(request_s=1.0), 0.0, 0.0)
    for number in (1, 2):
        engine.kernel.at(1.5, engine.front.abort, number)
    engine.kernel.run()
    assert engine.seen == [(1, 1.0), (-1, 1.5)]
