"""The papers' headlines: figures that a command yields and a page tells, bold where they fall short."""

from benchmarks.results import live
from benchmarks.results.headlines import Headlines, figures
from benchmarks.rivals.arms import NONE, OURS
from benchmarks.rivals.chats import ROWS, Row
from benchmarks.rivals.judging import BEST_ROUTER
from benchmarks.verdict import Figure

FOUND = Headlines.read()


def of_source(source: str) -> list[str]:
    return [
        name
        for each in FOUND.headlines
        if each.source == source
        for name in (*each.policy.values(), *each.ours.values())
    ]


def test_every_headline_is_a_figure_of_its_source() -> None:
    for source in FOUND.sources:
        wanted = of_source(source)
        assert wanted, source
        assert set(wanted) <= figures(source).keys(), source


def test_every_paper_has_its_rows() -> None:
    papers = {each.paper for each in FOUND.headlines}
    assert papers == {"SAGA", "Sutradhara", "Agent.xpu"}
    assert {each.source for each in FOUND.headlines} - {""} == FOUND.sources.keys()


def test_live_losses_are_bold() -> None:
    """Worse by more than 5 %: fewer requests a second, longer completions."""
    row, smg = "1.5s_of_60.", "smg"
    line = {f"{row}failed": 0.0, f"{row}{OURS}.pace_ms": 2.0}
    line |= {f"{row}{arm}.pace_ms": 1.0 for arm in (NONE, smg)} | {f"{row}{smg}.completion_mean_s": 9.0}
    ratios = {"requests_per_s": 0.9, "completion_mean_s": 0.9, "ttft_mean_ms": 1.04, "ttft_p99_ms": 1.2}
    for other in (NONE, BEST_ROUTER):
        for figure, ratio in ratios.items():
            line |= {f"{row}{figure}_to_{other}{end}": ratio for end in ("", "_low", "_high")}
    _, _, to_none, to_router = live.table(
        {name: Figure(value=value, target=None, ok=True) for name, value in line.items()}
    )
    assert to_none.startswith("| 1.5 s, 20 of 60 | no gateway | **0.90 (0.90–0.90)** | 0.90 (0.90–0.90) ")
    assert to_none.endswith("| 1.04 (1.04–1.04) | **1.20 (1.20–1.20)** | 2.00 |")
    assert "best router" in to_router


def test_every_live_row_is_stored() -> None:
    wanted = {f"{Row.read(row).name}failed" for row in ROWS} | {"mooncake.failed"}
    assert wanted <= figures("aiperf").keys()
