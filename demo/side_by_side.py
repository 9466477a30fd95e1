"""The comparison as text: one table, and a picture in bars, for a terminal of 110 columns."""

import textwrap
from collections.abc import Iterable, Iterator, Sequence

from demo import printing
from demo.comparison import Comparison, Measure, done_over_time

STOCK, OURS = "stock", "Turnpike"
_WIDTH = 110
_BAR = 44
_COLUMNS = 60
_EIGHTHS = " ▏▎▍▌▋▊▉█"
_LEVELS = " ▁▂▃▄▅▆▇█"
_PICTURED = (
    "a conversation, mean",
    "a real agent, mean",
    "first token, median",
    "first token, 99th percentile",
    "prompt tokens computed",
)


def as_text(compared: Comparison) -> str:
    """Everything; losses have a part of their own."""
    rows = [("", STOCK, OURS, "ratio", ""), *(_cells(each) for each in compared.measures)]
    return "\n".join(
        (
            *introduction(compared),
            "",
            *printing.table(rows, words=1),
            "",
            *_picture(compared),
            "",
            "What waited, and why",
            *_wrapped(compared.waits),
            "",
            "Where it does not help",
            *_wrapped(compared.losses or ["nothing here was worse"]),
            *_wrapped(compared.caveats),
        )
    )


def introduction(compared: Comparison) -> list[str]:
    """What was done."""
    agents, conversations = len(compared.ours.agents), len(compared.ours.played.seen.seconds)
    return [
        f"Twice on the same engines: {agents} real agents and {conversations} replayed conversations.",
        f"The conversations grow to {compared.peak_tokens:,} tokens; KV caches hold {compared.kv_tokens:,}.",
        "stock: a load balancer keeps sessions that name themselves on one engine; others go in turn.",
        "stock: the engines' plugin is loaded and sleeps, as nobody sends a hint: vLLM as it comes.",
        "Turnpike: the gateway with its defaults, just started; it sends the plugin hints.",
    ]


def _wrapped(lines: Iterable[str]) -> Iterator[str]:
    for line in lines:
        yield from textwrap.wrap(line, _WIDTH, initial_indent="  ", subsequent_indent="    ")


def _cells(measure: Measure) -> tuple[str, ...]:
    ratio = "" if measure.ratio is None or not measure.is_judged else f"{measure.ratio:.2f}"
    return (measure.name, measure.text(measure.stock), measure.text(measure.ours), ratio, measure.verdict)


def _picture(compared: Comparison) -> list[str]:
    found = {each.name: each for each in compared.measures}
    lines = []
    for name in _PICTURED:
        each = found[name]
        most = max(each.stock, each.ours)
        lines.append(name)
        for side, value in ((STOCK, each.stock), (OURS, each.ours)):
            lines.append(f"  {side:<9}{bar(value, most)} {each.text(value)}")
    span_s = max(compared.stock.took_s, compared.ours.took_s)
    at_s = [span_s * (column + 1) / _COLUMNS for column in range(_COLUMNS)]
    count = len(compared.ours.played.seen.seconds)
    lines.append(f"replayed conversations done, over {span_s:.0f} s")
    for side, of in ((STOCK, compared.stock), (OURS, compared.ours)):
        lines.append(f"  {side:<9}{_curve(done_over_time(of, at_s), count)}▏")
    return lines


def bar(value: float, most: float) -> str:
    """As long as its share of `most`, of `_BAR` columns."""
    eighths = round(8 * _BAR * value / most) if most else 0
    return (_EIGHTHS[8] * (eighths // 8) + _EIGHTHS[eighths % 8]).rstrip()


def _curve(done: Sequence[int], count: int) -> str:
    return "".join(_LEVELS[round(8 * each / count)] for each in done)
