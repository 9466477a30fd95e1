"""Many trials, several at a time.

Processes are forked, after vLLM was imported: that takes longer than most trials.

Invariants: results come in the order of the trials, whatever ended first; they do not depend on `jobs`.
"""

import multiprocessing
from collections.abc import Callable, Sequence

from lab.simulator.experiment.trial import Setting, Trial, Trials
from lab.simulator.measures.figures import RunFigures

Progress = Callable[[int, Trial, RunFigures], None]
"""Told how many are done, and which one just was."""

_trials: Trials | None = None
"""Of the process that was forked for them."""


def run_all(setting: Setting, trials: Sequence[Trial], *, jobs: int, progress: Progress) -> list[RunFigures]:
    global _trials  # noqa: PLW0603 - what a forked process inherits, instead of having it sent
    import lab.simulator.engine.replica  # noqa: F401, PLC0415 - takes seconds

    _trials = Trials(setting)
    results: list[RunFigures | None] = [None] * len(trials)
    if jobs == 1 or len(trials) == 1:
        for number, trial in enumerate(trials):
            results[number] = found = _trials.run(trial)
            progress(number + 1, trial, found)
    else:
        context = multiprocessing.get_context("fork")
        with context.Pool(min(jobs, len(trials))) as pool:
            done = pool.imap_unordered(_run, list(enumerate(trials)))
            for count, (number, found) in enumerate(done, start=1):
                results[number] = found
                progress(count, trials[number], found)
    return [found for found in results if found is not None]


def _run(task: tuple[int, Trial]) -> tuple[int, RunFigures]:
    number, trial = task
    assert _trials is not None
    return number, _trials.run(trial)
