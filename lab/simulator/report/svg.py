"""Small drawings as inline SVG: scales, axes, lines, bands, bars.

Colours and fonts are the page's (CSS classes `c0` to `c7`, `axis`, `grid`), so a drawing follows its theme. A
drawing is as wide as the page lets it be; its own coordinates are those of `Frame`.
"""

import math
from collections.abc import Iterable, Sequence
from html import escape
from typing import Final

import msgspec

Points = Sequence[tuple[float, float]]

COLOURS: Final = 8


class Scale(msgspec.Struct, frozen=True):
    """From numbers to coordinates."""

    low: float
    high: float
    start: float
    """Where `low` is."""
    end: float
    is_log: bool = False

    def at(self, value: float) -> float:
        low, high, value = (self._bent(number) for number in (self.low, self.high, value))
        share = (value - low) / (high - low) if high > low else 0.5
        return self.start + min(1.02, max(-0.02, share)) * (self.end - self.start)

    def ticks(self) -> list[float]:
        return _log_ticks(self.low, self.high) if self.is_log else _even_ticks(self.low, self.high)

    def _bent(self, value: float) -> float:
        return math.log10(max(value, 1e-9)) if self.is_log else value


def _even_ticks(low: float, high: float) -> list[float]:
    if high <= low:
        return [low]
    step = 10 ** math.floor(math.log10((high - low) / 4))
    step = next(step * factor for factor in (1, 2, 2.5, 5, 10) if (high - low) / (step * factor) <= 5)
    first = math.ceil(low / step - 1e-9)
    return [number * step for number in range(first, math.floor(high / step + 1e-9) + 1)]


def _log_ticks(low: float, high: float) -> list[float]:
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks: list[float] = []
    for factors in ((1,), (1, 3), (1, 2, 5)):
        ticks = [10.0**decade * factor for decade in decades for factor in factors]
        ticks = [tick for tick in ticks if low * 0.999 <= tick <= high * 1.001]
        if len(ticks) >= 3:
            break
    return ticks


def short(value: float) -> str:
    """A number for an axis."""
    if value == 0:
        return "0"
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= limit:
            scaled = value / (1e3 if unit == "k" else limit)
            return f"{scaled:.3g}{unit}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


class Frame:
    """A plot area with axes; what is drawn is clipped to it."""

    WIDTH: Final = 460
    HEIGHT: Final = 260
    _LEFT, _RIGHT, _TOP, _BOTTOM = 52, 22, 10, 40

    def __init__(
        self,
        *,
        x: tuple[float, float],
        y: tuple[float, float],
        x_title: str,
        y_title: str = "",
        log_x: bool = False,
        log_y: bool = False,
        x_ticks: Sequence[float] | None = None,
    ) -> None:
        self.x = Scale(*x, self._LEFT, self.WIDTH - self._RIGHT, log_x)
        self.y = Scale(*y, self.HEIGHT - self._BOTTOM, self._TOP, log_y)
        self._parts: list[str] = []
        self._axes(x_title, y_title, self.x.ticks() if x_ticks is None else x_ticks)

    def line(self, points: Points, colour: int, title: str, *, marks: bool = False) -> None:
        if not points:
            return
        path = " ".join(f"{self.x.at(x):.1f},{self.y.at(y):.1f}" for x, y in points)
        name = f"<title>{escape(title)}</title>"
        self._parts.append(f'<polyline class="line {_class(colour)}" points="{path}">{name}</polyline>')
        for x, y in points if marks else ():
            place = f'cx="{self.x.at(x):.1f}" cy="{self.y.at(y):.1f}"'
            name = f"<title>{escape(title)}: {short(y)} at {short(x)}</title>"
            self._parts.append(f'<circle class="mark {_class(colour)}" {place} r="3.2">{name}</circle>')

    def band(self, lower: Points, upper: Points, colour: int) -> None:
        corners = [*upper, *reversed(lower)]
        path = " ".join(f"{self.x.at(x):.1f},{self.y.at(y):.1f}" for x, y in corners)
        self._parts.append(f'<polygon class="band {_class(colour)}" points="{path}"/>')

    def svg(self, label: str) -> str:
        return (
            f'<svg viewBox="0 0 {self.WIDTH} {self.HEIGHT}" role="img" aria-label="{escape(label)}">'
            + "".join(self._parts)
            + "</svg>"
        )

    def _axes(self, x_title: str, y_title: str, x_ticks: Iterable[float]) -> None:
        left, right, top, bottom = self.x.start, self.x.end, self.y.end, self.y.start
        for tick in self.y.ticks():
            y = self.y.at(tick)
            self._parts.append(f'<line class="grid" x1="{left}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}"/>')
            self._parts.append(text(left - 6, y + 3.5, short(tick), "tick end"))
        for tick in x_ticks:
            x = self.x.at(tick)
            self._parts.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{top}" y2="{bottom}"/>')
            self._parts.append(text(x, bottom + 15, short(tick), "tick middle"))
        self._parts.append(f'<path class="axis" d="M{left} {top}V{bottom}H{right}"/>')
        self._parts.append(text((left + right) / 2, self.HEIGHT - 6, x_title, "label middle"))
        if not y_title:
            return
        middle = (top + bottom) / 2
        self._parts.append(
            f'<text class="label middle" transform="translate(11 {middle:.1f}) rotate(-90)">'
            f"{escape(y_title)}</text>"
        )


def _class(colour: int) -> str:
    """Colours repeat, with another dash."""
    return f"c{colour % COLOURS}" + (f" d{min(2, colour // COLOURS)}" if colour >= COLOURS else "")


def text(x: float, y: float, text: str, kind: str) -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}">{escape(text)}</text>'


def rect(x: float, y: float, width: float, height: float, kind: str, title: str = "") -> str:
    inside = f"<title>{escape(title)}</title>" if title else ""
    return (
        f'<rect class="{kind}" x="{x:.2f}" y="{y:.2f}" width="{max(width, 0.15):.2f}" height="{height:.2f}">'
        f"{inside}</rect>"
    )
