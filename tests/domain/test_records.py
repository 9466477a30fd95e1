"""Records are what is written and read elsewhere: each has a name of its own, and a time."""

from typing import get_args

import msgspec

from gateway.domain import records as rec
from gateway.domain.ids import ReplicaId


def test_every_record_has_its_own_name():
    tags = [kind.__struct_config__.tag for kind in get_args(rec.Record)]
    assert len(set(tags)) == len(tags)
    assert {"gpu_submit", "gpu_1st_token", "gpu_end", "tool_num", "tool_start", "tool_end"} <= set(tags)


def test_a_record_survives_the_wire():
    record = rec.ReplicaChanged(at_s=1.5, replica=ReplicaId("a"), state="up", why="is healthy")
    line = msgspec.json.encode(record)
    assert msgspec.json.decode(line)["type"] == "replica"
    assert msgspec.json.decode(line, type=rec.Record) == record
