"""The papers' headlines: figures that a command yields and a page tells, bold where they fall short."""

from benchmarks.results.headlines import Headlines, figures

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
