"""Benchmarks: programs that measure Turnpike and say whether it keeps what it promises.

Each prints what it did, with seed and versions, and last one JSON object, name → {value, target, ok}.
The exit status is 0 only if every target holds, 1 if one does not, 2 if it could not be measured.
They are no timed tests: nothing in `tests/` depends on how fast a machine is.
"""
