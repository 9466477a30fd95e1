"""One target with inputs that coverage guides: `python -m tests.fuzz.guided TARGET [libFuzzer's options]`.

Needs atheris, which is not installed with the other tools. It goes on until something fails or it is stopped.
"""

import importlib
import random
import sys


class Guided(random.Random):
    """Chance that reads its choices from bytes; when they are used up, everything is 0."""

    def __init__(self, data: bytes) -> None:
        super().__init__(0)
        self._data = data
        self._at = 0

    def getrandbits(self, bits: int, /) -> int:
        size = (bits + 7) // 8
        some = self._data[self._at : self._at + size]
        self._at += size
        return int.from_bytes(some.ljust(size, b"\0"), "little") >> (8 * size - bits)

    def random(self) -> float:
        return self.getrandbits(32) / 2**32


def main(arguments: list[str]) -> None:
    atheris = importlib.import_module("atheris")
    with atheris.instrument_imports(include=["gateway", "turnpike_vllm"]):
        targets = importlib.import_module("tests.fuzz.targets").TARGETS
    target = next(each for each in targets if each.name == arguments[1])

    def look(data: bytes) -> None:
        target.check(target.make(Guided(data)))

    atheris.Setup([arguments[0], *arguments[2:]], look)
    atheris.Fuzz()


if __name__ == "__main__":
    main(sys.argv)
