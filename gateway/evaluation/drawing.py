"""An execution graph as a picture: steps in the order in which tasks reach them, what follows them, and how
soon.

A node's area is how often the step was taken; an edge's width, how likely it follows. Edges to later steps
run below, those back run above, and a step that repeats itself has a loop. Under a node stand the median of
the pause behind it and its 95th percentile.
"""

import math
from collections.abc import Mapping
from typing import Final
from xml.sax.saxutils import escape

from gateway.domain.printable import printable
from gateway.workflow.graph import END, START, Graph
from gateway.workflow.return_model import ReturnModel

_APART: Final = 150
_MIDDLE: Final = 260
_HEIGHT: Final = 520
_MAX_NODES: Final = 12
_LEAST: Final = 0.05
"""Edges below this probability are left out."""
_STYLE: Final = (
    "text{font:12px sans-serif;fill:#1f2933;text-anchor:middle}"
    ".small{font-size:10px;fill:#52606d}.forth{stroke:#2a9d8f}.back{stroke:#e76f51}"
    ".edge{fill:none;opacity:.75}.node{fill:#e3f2f1;stroke:#1f2933}.end{fill:#f4e3dd}"
)


def draw_graph(graph: Graph, returns: ReturnModel) -> str:
    """An SVG. Steps beyond the `_MAX_NODES` most frequent are left out."""
    edges = [edge for edge in graph.edges() if edge[1] != END or edge[0] != START]
    weight: dict[int, float] = {}
    for _, to, _, seen in edges:
        weight[to] = weight.get(to, 0.0) + seen
    shown = sorted((n for n in weight if n != END), key=lambda n: -weight[n])[:_MAX_NODES]
    order = [START, *_in_order(shown, edges), END]
    places = {node: 80 + at * _APART for at, node in enumerate(order)}
    most = max(weight.values(), default=1.0)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {160 + _APART * (len(order) - 1)} {_HEIGHT}">',
        f"<style>{_STYLE}</style>",
        '<rect width="100%" height="100%" fill="#fff"/>',
        f"<title>{graph.steps} steps of {graph.tasks} conversations</title>",
    ]
    for start, to, share, _ in edges:
        if share >= _LEAST and start in places and to in places:
            parts += _edge(places, start, to, share)
    for node in order:
        parts += _node(graph, returns, node, places[node], weight.get(node, 0.0) / most)
    return "\n".join([*parts, "</svg>\n"])


def _in_order(shown: list[int], edges: list[tuple[int, int, float, float]]) -> list[int]:
    """By how far from the start they are, on the likeliest ways."""
    far = {START: 0.0}
    for _ in range(len(shown) + 1):
        for start, to, share, _ in edges:
            if start in far and to in shown and share > 0:
                length = far[start] + 0.2 - math.log(share)
                if length < far.get(to, math.inf):
                    far[to] = length
    return sorted(shown, key=lambda node: (far.get(node, math.inf), node))


def _node(graph: Graph, returns: ReturnModel, node: int, x: int, share: float) -> list[str]:
    radius = 14 + 26 * math.sqrt(share) if node != START else 8
    label = "start" if node == START else graph.label(node)
    kind = "node end" if node == END else "node"
    out = [f'<circle class="{kind}" cx="{x}" cy="{_MIDDLE}" r="{radius:.1f}"/>']
    words = label.split(" + ")
    for at, word in enumerate(words[:3]):
        shown = word if len(word) <= 20 else word[:19] + "…"
        out.append(f'<text x="{x}" y="{_MIDDLE + 4 + 13 * at}">{escape(printable(shown))}</text>')
    gaps = returns.pauses(graph.agent, step) if (step := graph.step(node)) is not None else None
    if gaps is not None:
        middle, long = gaps.quantile(0.5) or 0.0, gaps.quantile(0.95) or 0.0
        text = f"{_time(middle)} · p95 {_time(long)}"
        out.append(f'<text class="small" x="{x}" y="{_MIDDLE + radius + 14:.1f}">{text}</text>')
    return out


def _edge(places: Mapping[int, int], start: int, to: int, share: float) -> list[str]:
    x, y = places[start], places[to]
    width = 0.5 + 6 * share
    if start == to:
        top = _MIDDLE - 95
        path = f"M{x - 12} {_MIDDLE - 30} C{x - 45} {top} {x + 45} {top} {x + 12} {_MIDDLE - 30}"
        at, level, kind = x, top + 18, "back"
    else:
        is_forth = y > x
        bend = min(230, 50 + abs(y - x) * 0.28) * (1 if is_forth else -1)
        path = f"M{x} {_MIDDLE} Q{(x + y) / 2:.0f} {_MIDDLE + 2 * bend:.0f} {y} {_MIDDLE}"
        at, level, kind = (x + y) // 2, int(_MIDDLE + bend), "forth" if is_forth else "back"
    return [
        f'<path class="edge {kind}" stroke-width="{width:.1f}" d="{path}"/>',
        f'<text class="small" x="{at}" y="{level}">{share:.2f}</text>',
    ]


def _time(seconds: float) -> str:
    return (
        f"{seconds * 1e3:.0f} ms"
        if seconds < 1
        else f"{seconds:.1f} s"
        if seconds < 100
        else f"{seconds:.0f} s"
    )
