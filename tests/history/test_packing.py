"""Records as short tuples, and back."""

from typing import get_args

import msgspec
import pytest

from gateway.domain import records as rec
from gateway.domain.admission_records import SessionHeld
from gateway.domain.decision import Edge, Guess, SessionSource, WaitReason
from gateway.domain.ids import PoolId, ReplicaId, RequestId, SessionId, TenantId, ThreadId
from gateway.domain.request import Claims, Protocol, Usage
from gateway.history.packing import SHAPE, pack, unpack

TURN, SESSION, TENANT, A = RequestId("r-1"), SessionId("s-1"), TenantId("t"), ReplicaId("a")
EXPECTED = rec.Expected(
    prompt_tokens=10, cached_tokens=4, output_tokens=3, first_token_ms=5.0, first_token_p10_ms=4.0,
    first_token_p90_ms=6.0, completion_ms=50.0, completion_p10_ms=40.0, completion_p90_ms=60.0,
)  # fmt: skip
RECORDS: list[rec.Record] = [
    rec.TurnArrived(
        at_s=1.5, turn=TURN, session=SESSION, tenant=TENANT, protocol=Protocol.CHAT, model="m",
        source=SessionSource.PREFIX, confidence=0.9, body_bytes=9, message_count=2, tool_count=1,
        thread=ThreadId("s-1.1"), edge=Edge.FORKS, parent=RequestId("r-0"),
        claims=Claims(service_class="reactive"),
        guess=Guess(
            session=SessionId("s-0"), thread=None, source=SessionSource.ECHO, confidence=0.5,
            edge=Edge.FORKS, parent=None,
        ),
    ),
    rec.TurnWaited(at_s=1.6, turn=TURN, session=SESSION, reason=WaitReason.KV_FULL, waiting=3),
    SessionHeld(
        at_s=1.6, session=SESSION, pool=PoolId("p"), tenant=TENANT, reason=WaitReason.KV_FULL, ahead=2,
        with_it=5.0, limit=4.0,
    ),
    rec.GpuSubmit(
        at_s=2.0, turn=TURN, session=SESSION, replica=A, prompt_bytes=9, attempt=1, expected=EXPECTED
    ),
    rec.GpuSubmit(at_s=2.0, turn=TURN, session=SESSION, replica=A, prompt_bytes=9, attempt=1),
    rec.GpuEnd(
        at_s=3.0, turn=TURN, session=SESSION, replica=A, outcome="finished", status=200,
        usage=Usage(prompt_tokens=10, cached_tokens=4), finish_reason="stop", duration_ms=1000.0,
    ),
    rec.ToolStart(at_s=3.0, turn=TURN, session=SESSION, names=("bash", "edit"), ready_ms=(1.0,)),
    rec.StepPredicted(
        at_s=3.0, turn=TURN, session=SESSION, thread=ThreadId("s-1.1"), tools=("bash",), next=None,
        confidence=0.7, ends=0.2, reuse=0.8, retain_s=3.0, returns_in_s=None,
    ),
]  # fmt: skip


def through(records, shape=SHAPE):
    packed = msgspec.msgpack.decode(msgspec.msgpack.encode([pack(each) for each in records]))
    return unpack(packed, msgspec.json.decode(msgspec.json.encode(shape)), turn=TURN, session=SESSION)


def test_what_is_packed_is_unpacked():
    assert through(RECORDS) == RECORDS


@pytest.mark.parametrize("kind", get_args(rec.Record))
def test_no_field_of_any_record_is_forgotten(kind):
    [fields] = [fields for tag, fields in SHAPE if tag == kind.__struct_config__.tag]
    shared = {"turn", "session"} & set(kind.__struct_fields__)
    assert {name for name, _ in fields} | shared == set(kind.__struct_fields__)


def test_it_is_short():
    told = sum(len(msgspec.msgpack.encode(pack(each))) for each in RECORDS)
    assert told < 0.45 * len(msgspec.json.encode(RECORDS))


def test_of_another_version_is_read_what_can_be():
    older = msgspec.json.decode(msgspec.json.encode(SHAPE))
    waited = next(fields for tag, fields in older if tag == "turn_wait")
    waited[2][0] = "was_called_so"  # what is `waiting` now, which must be there
    arrived = next(fields for tag, fields in older if tag == "turn_arrive")
    [at] = [at for at, (name, _) in enumerate(arrived) if name == "guess"]
    arrived[at][0] = "hunch"  # what may be missing
    told = through(RECORDS[:2], older)
    assert told == [msgspec.structs.replace(RECORDS[0], guess=None)]
    assert unpack([(999, 1.0)], SHAPE, turn=TURN, session=SESSION) == []
