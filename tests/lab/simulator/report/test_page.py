from html.parser import HTMLParser

from lab.simulator.fleet import FleetSpec, ReplicaGroup
from lab.simulator.report.page import Page, page
from lab.workload.trace.format import Header, Source
from tests.lab.simulator.report.cells import cell

VOID = {"meta", "br", "line", "rect", "path", "polygon", "polyline", "circle"}


class Checker(HTMLParser):
    """That tags are closed in order, and what is referred to."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.count: dict[str, int] = {}
        self.references: list[str] = []

    def handle_starttag(self, tag, attrs):
        self.count[tag] = self.count.get(tag, 0) + 1
        self.references += [value for name, value in attrs if name in ("src", "href", "xlink:href")]
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.count[tag] = self.count.get(tag, 0) + 1

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def _page(cells) -> str:
    return page(
        Page(
            title="<mixed> & more",
            workload=Header(name="w", sources=(Source(what="sessions", origin="a <corpus>"),)),
            fleet=FleetSpec(replicas=(ReplicaGroup(profile="m@h", count=2, offload_gb=64.0),)),
            arrivals="poisson",
            sessions=10,
            seeds=2,
            cells=cells,
        )
    )


CELLS = [
    cell("affinity", 40.0, 100.0),
    cell("affinity", 70.0, 900.0),
    cell("cap:sweep", 40.0, 110.0, variant="cap:n=8", variants=2),
    cell("cap:sweep", 40.0, 120.0, variant="cap:n=9", variants=2, is_best=False),
    cell("cap:sweep", 70.0, 410.0, variant="cap:n=8", variants=2, is_best=False),
    cell("cap:sweep", 70.0, 210.0, variant="cap:n=9", variants=2),
    cell("oracle", 40.0, 90.0, is_clairvoyant=True),
    cell("oracle", 70.0, 95.0, is_clairvoyant=True),
]


def test_a_page_is_whole_and_needs_nothing_from_elsewhere():
    text = _page(CELLS)
    checker = Checker()
    checker.feed(text)
    checker.close()
    assert not checker.open
    assert not checker.references
    assert "http" not in text and "url(" not in text and "<script" not in text
    assert checker.count["svg"] > 20
    assert "<a&amp;b>" not in text and "&lt;a&amp;b&gt;" in text  # ids are other people's
    assert "prefers-color-scheme: dark" in text


def test_the_best_of_a_sweep_is_shown_at_each_load_and_the_others_below():
    text = _page(CELLS)
    assert "cap:n=8 (best of 2)" in text and "cap:n=9 (best of 2)" in text
    sweeps = text[text.index("<h2>Sweeps</h2>") :]
    # Medians: 165, 180 at 40/h; 615, 315 at 70/h.
    for figure in ('<td class="best">165</td>', "<td>180</td>", "<td>615</td>", '<td class="best">315</td>'):
        assert figure in sweeps
