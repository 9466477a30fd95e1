"""The machine's pace, by a little work."""

import tracemalloc

from benchmarks.speedometer import Work, pace_s


def test_the_work_allocates_next_to_nothing():
    """What fresh memory takes is the system's mood, and no pace."""
    work = Work()
    work()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        work()
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most - before < 100_000


def test_it_is_told():
    assert 0 < pace_s() < 1
