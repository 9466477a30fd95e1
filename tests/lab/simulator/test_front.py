"""A server's front serves one request after the other."""

from lab.simulator.engine.front import Front, FrontCosts
from lab.simulator.engine.turn import EngineTurn
from lab.simulator.kernel import Kernel
from lab.workload.trace.format import Session, Thread, Turn, TurnRef


class Engine:
    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.seen: list[tuple[int, float]] = []
        self.turns = 0

    def submit(self, turn: EngineTurn) -> None:
        self.seen.append((turn.number, self.kernel.now))

    def abort(self, number: int) -> None:
        self.seen.append((-number, self.kernel.now))

    def hint(self, text: str) -> None:
        self.hinted = text


def test_requests_reach_the_engine_one_by_one():
    kernel = Kernel()
    engine = Engine(kernel)
    front = Front(engine, FrontCosts(request_s=1.0, prompt_token_s=0.01), kernel)
    session = Session(id="s", threads=(Thread(turns=(Turn(input_tokens=100, output_tokens=1),)),))
    for number, at_s in ((1, 0.0), (2, 0.5), (3, 9.0)):
        turn = EngineTurn(number=number, session=session, ref=TurnRef(0, 0), keys=[], submitted_s=at_s)
        kernel.at(at_s, front.submit, turn)
    kernel.run()
    front.hint("held")
    assert engine.hinted == "held"
    assert engine.seen == [(1, 2.0), (2, 4.0), (3, 11.0)]


def test_what_is_aborted_never_reaches_the_engine_or_is_aborted_there():
    kernel = Kernel()
    engine = Engine(kernel)
    front = Front(engine, FrontCosts(request_s=1.0), kernel)
    session = Session(id="s", threads=(Thread(turns=(Turn(input_tokens=100, output_tokens=1),)),))
    for number in (1, 2):
        turn = EngineTurn(number=number, session=session, ref=TurnRef(0, 0), keys=[], submitted_s=0.0)
        kernel.at(0.0, front.submit, turn)
        kernel.at(1.5, front.abort, number)
    kernel.run()
    assert engine.seen == [(1, 1.0), (-1, 1.5)]
