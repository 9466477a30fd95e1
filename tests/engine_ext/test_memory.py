"""What is remembered is bounded, however long the server runs."""

import pytest

from tests.engine_ext.test_guard import build
from tests.engine_ext.test_scheduler import prompt
from turnpike_vllm.biases import CLAIMS_PER_BLOCK
from turnpike_vllm.hints import Hint

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(300)]


def test_what_nobody_hinted_is_remembered_once_however_often_it_is_asked() -> None:
    engine = build()
    engine.hint(Hint(session="wakes", seq=1))
    for _ in range(300):
        engine.submit(prompt(1, 100), max_tokens=1)
    engine.run()
    assert len(engine.biases.keeper.evictor) == 1


def test_strangers_are_bounded_and_overwritten_before_a_session_that_returns() -> None:
    engine = build(turnpike={"retention": False})
    session = engine.submit(prompt(1, 500), max_tokens=1, hint=Hint(session="s", seq=1, reuse=0.9))
    engine.run()
    for number in range(60):
        engine.submit(prompt(2 + number, 400 + 16 * (number % 9)), max_tokens=1)
        engine.run()
    evictor = engine.biases.keeper.evictor
    assert evictor._entries <= CLAIMS_PER_BLOCK * engine.total_blocks
    assert len(evictor) < 6
    back = engine.submit(prompt(1, 500), max_tokens=1, hint=Hint(session="s", seq=2))
    engine.run()
    assert engine.done[back].cached_tokens == 496
    assert engine.done[session].cached_tokens == 0


def test_many_sessions_on_one_prompt_leave_so_much_and_no_more() -> None:
    engine = build()
    for number in range(600):
        engine.submit(prompt(1, 500), max_tokens=1, hint=Hint(session=f"s{number}", seq=1, is_final=True))
        engine.run()
    evictor = engine.biases.keeper.evictor
    assert 20 < len(evictor) <= CLAIMS_PER_BLOCK * engine.total_blocks / 31
    assert len(evictor._heap) <= 2 * len(evictor) + 65
