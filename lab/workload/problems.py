"""Records that could not be read: counted, the first few kept to be shown."""

from typing import Final

import msgspec

SHOWN: Final = 5


class Problems(msgspec.Struct):
    count: int = 0
    shown: list[str] = []

    def add(self, where: str, what: object) -> None:
        """A record that is left out, and why. `where` names its file and line."""
        self.count += 1
        if len(self.shown) < SHOWN:
            self.shown.append(f"{where}: {what}")
