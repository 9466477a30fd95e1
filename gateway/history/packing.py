"""Records as short tuples, and back (pure).

As JSON the records of a turn take 1.5 to 2 KB, most of it names of fields and ids that are the same in all of
them. Here a record is the number of its type and its values; the names are kept once, as a `Shape`, beside
what was packed with it. So a newer gateway, whose records have other fields, reads what an older one wrote.

Invariants: `unpack(pack(records)) == records` for the same turn and session; what a shape names and a record
of today lacks is left out, and the other way round a default is taken.
"""

import typing
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, get_args

import msgspec

from gateway.domain.ids import RequestId, SessionId
from gateway.domain.records import Record

Shape = list[tuple[str, list[tuple[str, list[str] | None]]]]
"""Of each type its tag and its fields; of a field its name and, if it holds a struct, the names in there."""

_SHARED: Final = ("turn", "session")
"""Said once for all records of a turn."""
_record_of: Final = Record


def _inner(annotation: Any) -> type[msgspec.Struct] | None:
    for each in (annotation, *get_args(annotation)):
        if isinstance(each, type) and issubclass(each, msgspec.Struct):
            return each
    return None


def _fields(kind: type[msgspec.Struct]) -> list[tuple[str, list[str] | None]]:
    hints = typing.get_type_hints(kind)
    told = []
    for name in kind.__struct_fields__:
        if name not in _SHARED:
            inner = _inner(hints[name])
            told.append((name, list(inner.__struct_fields__) if inner is not None else None))
    return told


_KINDS: Final = get_args(Record)
SHAPE: Final[Shape] = [(str(kind.__struct_config__.tag), _fields(kind)) for kind in _KINDS]
"""Of the records of this version."""


def _packer(number: int) -> Callable[[Any], tuple[Any, ...]]:
    """Written out for its type, as `collections.namedtuple` does: to go through the fields takes three times
    as long."""
    values = [str(number)]
    for name, inner in SHAPE[number][1]:
        value = f"record.{name}"
        values.append(value if inner is None else f"None if {value} is None else astuple({value})")
    source = f"lambda record: ({', '.join(values)},)"
    packer: Callable[[Any], tuple[Any, ...]] = eval(source, {"astuple": msgspec.structs.astuple})  # noqa: S307 - names of our own fields
    return packer


PACKERS: Final = {kind: _packer(number) for number, kind in enumerate(_KINDS)}


def pack(record: Record) -> tuple[Any, ...]:
    """Without its turn and session."""
    return PACKERS[type(record)](record)


def unpack(
    packed: Iterable[Sequence[Any]],
    shape: Shape,
    *,
    turn: RequestId | None,
    session: SessionId | None,
    only: str | None = None,
) -> list[Record]:
    """Those that a record of today can be made of. `only`: of this type."""
    records = []
    for number, *values in packed:
        if number >= len(shape):
            continue
        tag, fields = shape[number]
        if only is not None and tag != only:
            continue
        told: dict[str, Any] = {"type": tag, "turn": turn, "session": session}
        for (name, names), value in zip(fields, values, strict=False):
            is_struct = names is not None and value is not None
            told[name] = dict(zip(names or (), value, strict=False)) if is_struct else value
        try:
            records.append(msgspec.convert(told, _record_of))
        except msgspec.ValidationError:  # of another version
            continue
    return typing.cast(list[Record], records)
