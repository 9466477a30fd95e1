"""What a gateway expected is read from its stream, turn by turn, as far as it came true."""

import msgspec

from benchmarks.expected import read_told
from gateway.domain import records as rec
from tests.core.playbook import Playbook, arrived, at_once, cut, dispatch, finished, first_token, started


def test_turns_that_were_answered_are_told_in_order(tmp_path):
    play = Playbook()
    for name in ("r1", "r2", "r3", "r4"):
        play >> arrived(name, stream=True, body_bytes=400) << dispatch(name, to="a")
    play.now += 0.5
    _ = play >> started("r2") >> first_token("r2") >> started("r1") >> first_token("r1")
    _ = play >> started("r3") >> cut("r3") >> at_once("r4", status=500)
    play.now += 0.25
    _ = play >> finished("r2") >> finished("r1")
    stream = tmp_path / "stream"
    stream.write_bytes(b"".join(msgspec.json.encode(record) + b"\n" for record in play.records))
    told = read_told(stream)
    assert [(turn.first_token_s, turn.end_s) for turn in told] == [(0.5, 0.75)] * 2
    assert told[0].expected == play.seen(rec.GpuSubmit)[0].expected
    assert told[0].expected.prompt_tokens == 100
