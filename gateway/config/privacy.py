"""Which texts of the settings may be recorded.

Every text in the settings is marked as one or the other; what has no mark is not recorded (and a test asks
for one). So no secret that is added later gets into a recording because nobody thought of it.
"""

from functools import cache
from typing import Final

import msgspec
from msgspec import Meta, inspect

# A name that the brain goes by: it appears in records anyway.
RECORDED: Final = Meta(extra={"recorded": True})
# A secret, where one is kept, an address, or a path of this machine.
PRIVATE: Final = Meta(extra={"recorded": False})


@cache
def fields_of(kind: type[msgspec.Struct]) -> tuple[inspect.Field, ...]:
    shape = inspect.type_info(kind)
    assert isinstance(shape, inspect.StructType)
    return shape.fields


def holds_private_text(shape: inspect.Type, *, may_be_recorded: bool = False) -> bool:
    match shape:
        case inspect.Metadata():
            mark = (shape.extra or {}).get("recorded", may_be_recorded)
            return holds_private_text(shape.type, may_be_recorded=mark)
        case inspect.StrType():
            return not may_be_recorded
        case inspect.UnionType():
            return any(holds_private_text(each) for each in shape.types)
        case inspect.CollectionType():
            return holds_private_text(shape.item_type)
        case inspect.DictType():
            return holds_private_text(shape.key_type) or holds_private_text(shape.value_type)
        case _:
            return False
