"""What the rounds amount to: each gateway's figures, the ratios that count, and who was better."""

from collections.abc import Callable
from typing import Final

from benchmarks.shapes import Measured, Shape, Unit
from benchmarks.verdict import Spread, Verdict, ratios

Results = dict[str, dict[str, list[Measured]]]
"""Shape → gateway → one measurement for each round."""

NOTICEABLE_SHARE: Final = 0.1


OURS: Final = "turnpike"
OURS_LEAN: Final = "turnpike lean"
"""It knows no sessions."""
ROUTERS: Final = ("smg", "vllm-router")


def judge(shape: Shape, rounds: dict[str, list[Measured]], verdict: Verdict) -> None:
    """Adds the shape's figures to the verdict."""
    rival = fastest(shape, rounds, ROUTERS)
    ratio = None if rival is None else ratios(values(rounds[OURS]), values(rounds[rival]))
    name, value = f"{shape.name}_ratio", None if ratio is None else ratio.median
    if shape.bound is None:
        verdict.tell(name, value)
    elif shape.is_less_better:
        verdict.at_most(name, value, shape.bound)
    else:
        verdict.at_least(name, value, shape.bound)
    for name, measured in rounds.items():
        spread = Spread.of(values(measured))
        verdict.tell(f"{shape.name}.{name}", spread.median)
        width = (spread.high - spread.low) / spread.median if spread.median else None
        verdict.tell(f"{shape.name}.{name}.spread", width)
        if name != "upstream itself" and shape.unit is not Unit.CPU:
            verdict.tell(f"{shape.name}.{name}.cpu_us", Spread.of([m.cpu_us for m in measured]).median)


def disturbed(results: Results) -> tuple[int, int]:
    """How often strangers took a noticeable part of the gateway's core (it should be never), of how many."""
    shares = [
        each.strangers_share for rounds in results.values() for seen in rounds.values() for each in seen
    ]
    return sum(share > NOTICEABLE_SHARE for share in shares), len(shares)


def fastest(shape: Shape, rounds: dict[str, list[Measured]], names: tuple[str, ...]) -> str | None:
    """By the median of the rounds; one whose answers were not all right is no rival."""
    medians = {
        name: Spread.of(values(rounds[name])).median
        for name in names
        if name in rounds and not any(m.failures for m in rounds[name]) and all(values(rounds[name]))
    }
    if not medians:
        return None
    best = min if shape.is_less_better else max
    return best(medians, key=lambda name: medians[name])


def values(measured: list[Measured]) -> list[float]:
    return [each.value for each in measured]


def print_shape(shape: Shape, rounds: dict[str, list[Measured]], tell: Callable[..., None]) -> None:
    tell(f"\n{shape.title}: {shape.unit.value} [lowest–highest], CPU an answer, others' share of it")
    for name, measured in rounds.items():
        spread, cpu = Spread.of(values(measured)), Spread.of([each.cpu_us for each in measured])
        strangers = Spread.of([each.strangers_share for each in measured]).median
        failures = sum(each.failures for each in measured)
        first = next((each.first_failure for each in measured if each.first_failure), "")
        tell(
            f"  {name:<24}{spread.median:>10,.4g} [{spread.low:,.4g}–{spread.high:,.4g}]"
            f"{cpu.median:>8.0f} µs {strangers:>6.0%}{f'  {failures} FAILED: {first}' if failures else ''}"
        )
