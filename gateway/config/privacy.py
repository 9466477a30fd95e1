"""Which texts of the settings may be recorded.

Every text in the settings is marked as one or the other; what has no mark is not recorded (and a test asks
for one). So no secret that is added later gets into a recording because nobody thought of it.
"""

from typing import Final

from msgspec import Meta

RECORDED: Final = Meta(extra={"recorded": True})
"""A name that the brain goes by: it appears in records anyway."""
PRIVATE: Final = Meta(extra={"recorded": False})
"""A secret, where one is kept, an address, or a path of this machine."""
