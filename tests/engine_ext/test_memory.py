"""What is remembered is bounded, however long the server runs."""

import pytest

from tests.engine_ext.test_guard import build
from tests.engine_ext.test_scheduler import prompt
from turnpike_vllm.biases import CLAIMS_PER_BLOCK
from turnpike_vllm.hints import Hint

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(300)]


def test_nothing_is_left_of_what_nobody_hinted() -> None:
    engine = build()
    engine.hint(Hint(session="wakes", seq=1))
    for _ in range(200):
        engine.submit(prompt(1, 100), max_tokens=1)
    for number in range(20):
        engine.submit(prompt(2 + number, 400), max_tokens=60)
    engine.run()
    assert sum(engine.biases.counters()["preemptions"].values()) > 0
    evictor = engine.biases.keeper.evictor
    assert (len(evictor), len(evictor._claims), len(evictor._heap)) == (0, 0, 0)


def test_many_sessions_on_one_prompt_leave_so_much_and_no_more() -> None:
    engine = build()
    for number in range(600):
        engine.submit(prompt(1, 500), max_tokens=1, hint=Hint(session=f"s{number}", seq=1, is_final=True))
        engine.run()
    evictor = engine.biases.keeper.evictor
    assert 20 < len(evictor) <= CLAIMS_PER_BLOCK * engine.total_blocks / 31
    assert len(evictor._heap) <= 2 * len(evictor) + 65
