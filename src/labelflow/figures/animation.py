"""Two mixed images on their way through a model, as an SVG that moves by CSS alone: no scripts, nothing loaded.

It follows the reader's choice of light or dark. Where less motion is wanted it shows its last moment; `FILE.svg#still`
always does, for pages, since browsers do not tell images about motion.
"""

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from string import Template

from PIL import Image
from torch import Tensor

WIDTH, HEIGHT = 640, 456
STAGE, PLACE = (20, 62), 300  # where the mixed image lies, and its side
CHART = (374, 232, 594, 322)  # left, top, right, bottom
BAR = (20, 398, 600, 38)  # left, top, width, height
PHOTO, FRAME, REST = 2.2, 2.6, 4.0  # seconds: of the photographs, of each frame after them, at the end
FADE, RISE, FLY = 0.5, 0.6, 1.6  # seconds of a frame: until it is there, until its dots fly, until they have arrived

STYLE = Template("""
svg { --ink: #1c1f23; --soft: #5d646d; --rule: #c9ccd1; --own: #ca0020; --partner: #0571b0; --card: #f5f6f8; }
@media (prefers-color-scheme: dark) {
  svg { --ink: #f1f2f4; --soft: #b3b8c0; --rule: #565b64; --own: #ff8a94; --partner: #73bdf0; --card: #23262e; }
}
text { font: 21px system-ui, sans-serif; fill: var(--ink); }
.strong { font-weight: 600; font-size: 24px; } .soft { fill: var(--soft); } .white { fill: #fff; font-weight: 600; }
.card { fill: var(--card); } .rule { stroke: var(--soft); stroke-width: 2; stroke-dasharray: 3 5; }
.own { fill: var(--own); } .partner { fill: var(--partner); }
.line { stroke: var(--own); stroke-width: 4; } .mark { stroke: #fff; stroke-width: 3; stroke-dasharray: 5 4; }
.frame { fill: none; stroke-width: 4; } .frame.own { stroke: var(--own); } .frame.partner { stroke: var(--partner); }
.frame.own, .frame.partner { fill: none; }
.said { opacity: 0; } .said.last { opacity: 1; } .dot { opacity: 0; stroke: #fff; stroke-width: .7; }
#share { transform-origin: ${bar}px 0; transform: scaleX($rest); }
@media (prefers-reduced-motion: no-preference) {
  .come, .said, .dot, #share { animation: ${seconds}s linear infinite both; }
$moves}
svg:target * { animation: none !important; }
""")


@dataclass(frozen=True)
class Frame:
    """What is seen for a moment."""

    caption: str
    image: Image.Image
    share: float  # the own part of what the classifier would read
    places: Tensor | None = None  # (rows, columns): how much each place is read, 1 on average; None: nothing has moved


def film(photos: Sequence[Image.Image], names: tuple[str, str], start: Tensor, frames: Sequence[Frame]) -> str:
    """photos: own, partner's, mixed; start (rows, columns): the own share of each place before the first layer; frames:
    the first by area, then one for each layer."""
    times = [0.0, *(PHOTO + FRAME * number for number in range(len(frames) + 1))]
    seconds = times[-1] + REST
    points = _points([frame.share for frame in frames])
    area, arrived = frames[0].share, frames[-1].share
    style = STYLE.substitute(
        bar=BAR[0], rest=f"{arrived:.4f}", seconds=f"{seconds:.1f}", moves=_moves(times, seconds, points, frames)
    )
    own, partner = names
    told = f"{own} and {partner}, mixed: λ says {area:.0%}, {arrived:.0%} of what reaches the classifier is {own}."
    x, y = STAGE
    verdict = f"CutMix trains on {area:.0%}, TL-Align on {arrived:.0%}"
    captions = ["Two images, cut together", *(frame.caption for frame in frames), verdict]
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" id="still" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">',
        f"<title>{escape(told)}</title><style>{style}</style>",
        f'<rect class="card" width="{WIDTH}" height="{HEIGHT}" rx="12"/>',
        *(_said(f"at{number}", number == len(frames) + 1, f'<text class="strong" x="{x}" y="42">{text}</text>')
          for number, text in enumerate(captions)),
        _image(photos[2], x, y, PLACE),
        *(f'<g class="come in{number}">{_image(frame.image, x, y, PLACE)}</g>'
          for number, frame in enumerate(frames)),
        *_photo(photos[0], own, "own", 368, y), *_photo(photos[1], partner, "partner", 496, y),
        *_chart(points, area, arrived), *_bar(own, partner, frames),
        *_dots(start, frames),
        "</svg>\n",
    ]  # fmt: skip
    return "\n".join(parts)


def _said(name: str, last: bool, text: str) -> str:
    """Seen in its own moment only."""
    return f'<g class="said {name}{" last" * last}">{text}</g>'


def _photo(image: Image.Image, name: str, kind: str, x: int, y: int) -> list[str]:
    return [
        _image(image, x, y, 104),
        f'<rect class="frame {kind}" x="{x}" y="{y}" width="104" height="104"/>',
        f'<text class="{kind}" x="{x + 52}" y="{y + 130}" text-anchor="middle">{escape(_short(name))}</text>',
    ]


def _points(shares: Sequence[float]) -> list[tuple[float, float]]:
    """Where the shares lie in the chart."""
    left, top, right, bottom = CHART
    low, high = min(shares), max(shares)
    room = max(0.1 - (high - low), 0) / 2  # at least ten points from the lowest to the highest
    step = (right - left) / max(len(shares) - 1, 1)
    span = high - low + 2 * room
    return [(left + step * i, bottom - (share - low + room) / span * (bottom - top)) for i, share in enumerate(shares)]


def _chart(points: list[tuple[float, float]], area: float, arrived: float) -> list[str]:
    left, _, right, bottom = CHART
    parts = [f'<path class="rule" d="M{left} {points[0][1]:.1f}H{right}"/>']
    for number, ((x, y), (to_x, to_y)) in enumerate(pairwise(points), start=1):
        parts.append(f'<path class="line come got{number}" d="M{x:.1f} {y:.1f}L{to_x:.1f} {to_y:.1f}"/>')
    for number, (x, y) in enumerate(points):
        parts.append(f'<circle class="own come got{number}" cx="{x:.1f}" cy="{y:.1f}" r="6"/>')
    parts.append(f'<text class="soft come got0" x="{left - 6}" y="{bottom + 30}">area {area:.0%}</text>')
    text = f'x="{right + 6}" y="{bottom + 30}" text-anchor="end">arrives {arrived:.0%}</text>'
    return [*parts, f'<text class="own come got{len(points) - 1}" {text}']


def _bar(own: str, partner: str, frames: Sequence[Frame]) -> list[str]:
    left, top, width, height = BAR
    own, partner = (escape(_short(name)) for name in (own, partner))
    parts = [
        f'<text class="soft" x="{left}" y="{top - 10}">What the classifier reads:</text>',
        f'<rect x="{left}" y="{top}" width="{width}" height="{height}" fill="#0571b0"/>',
        f'<rect id="share" x="{left}" y="{top}" width="{width}" height="{height}" fill="#ca0020"/>',
        f'<path class="mark" d="M{left + width * frames[0].share:.1f} {top}v{height}"/>',
    ]
    for number, frame in enumerate(frames):
        sides = [(own, frame.share, left + 12, "start"), (partner, 1 - frame.share, left + width - 12, "end")]
        texts = "".join(
            f'<text class="white" x="{x}" y="{top + 26}" text-anchor="{anchor}">{name} {share:.0%}</text>'
            if share > 0.3  # else there is no room for a name
            else f'<text class="white" x="{x}" y="{top + 26}" text-anchor="{anchor}">{share:.0%}</text>'
            for name, share, x, anchor in sides
        )
        parts.append(_said(f"read{number}", number == len(frames) - 1, texts))
    return parts


def _dots(start: Tensor, frames: Sequence[Frame]) -> list[str]:
    """A dot for each place: it flies once a layer, as large as the place counts in what the classifier reads then."""
    rows, columns = start.shape
    parts = []
    for row in range(rows):
        for column in range(columns):
            x, y = STAGE[0] + (column + 0.5) * PLACE / columns, STAGE[1] + (row + 0.5) * PLACE / rows
            sizes = [
                f"--s{number}:{float(frame.places[row, column]) ** 0.5:.2f}"
                for number, frame in enumerate(frames)
                if frame.places is not None
            ]
            fill = "#ca0020" if start[row, column] >= 0.5 else "#0571b0"
            style = f"--x:{x:.0f}px;--y:{y:.0f}px;{';'.join(sizes)}"
            parts.append(f'<circle class="dot" r="5" fill="{fill}" style="{style}"/>')
    return parts


def _moves(times: list[float], seconds: float, points: list[tuple[float, float]], frames: Sequence[Frame]) -> str:
    """Keyframes. times: when the photographs come, and then each frame; what is read changes when its dots arrive."""

    def keys(*moments: tuple[float, str]) -> str:
        return " ".join(f"{100 * time / seconds:.2f}% {{{what}}}" for time, what in moments)

    def named(name: str, moments: str) -> str:
        return f"  .{name} {{ animation-name: {name}; }} @keyframes {name} {{ {moments} }}"

    def come(begin: float) -> str:
        return keys((0, "opacity:0"), (begin, "opacity:0"), (begin + FADE, "opacity:1"), (seconds, "opacity:1"))

    def said(begin: float, end: float) -> str:
        start = [(0.0, "opacity:0"), (begin - 0.01, "opacity:0")] if begin else []
        stop = [(end - 0.01, "opacity:1"), (end, "opacity:0"), (seconds, "opacity:0")] if end < seconds else []
        return keys(*start, (begin, "opacity:1"), *stop or [(seconds, "opacity:1")])

    ends = [*times[1:], seconds]
    lines = [
        named(f"at{number}", said(begin, end)) for number, (begin, end) in enumerate(zip(times, ends, strict=True))
    ]
    arrivals = [begin + (0 if frame.places is None else FLY) for begin, frame in zip(times[1:], frames, strict=False)]
    for number, (begin, arrival) in enumerate(zip(times[1:], arrivals, strict=False)):
        lines += [named(f"in{number}", come(begin)), named(f"got{number}", come(arrival))]
    reads = zip([0.0, *arrivals[1:]], [*arrivals[1:], seconds], strict=True)
    lines += [named(f"read{number}", said(begin, end)) for number, (begin, end) in enumerate(reads)]
    bar, fly = [(0.0, f"transform:scaleX({frames[0].share:.4f})")], [(0.0, "opacity:0")]
    for number, (frame, arrival) in enumerate(zip(frames, arrivals, strict=True)):
        bar += [(arrival, bar[-1][1]), (arrival + FADE, f"transform:scaleX({frame.share:.4f})")]
        if frame.places is None:
            continue
        begin, (x, y) = times[number + 1], points[number]
        home = f"transform:translate(var(--x),var(--y)) scale(var(--s{number}))"
        there = f"transform:translate({x:.0f}px,{y:.0f}px) scale(.3)"
        fly += [(begin, f"opacity:0;{home}"), (begin + FADE / 2, f"opacity:1;{home}")]
        fly += [(begin + RISE, f"opacity:1;{home};animation-timing-function:ease-in")]
        fly += [(begin + FLY, f"opacity:.9;{there}"), (begin + FLY + 0.1, f"opacity:0;{there}")]
    lines += [f"  #share {{ animation-name: share; }} @keyframes share {{ {keys(*bar)} }}"]
    lines += [f"  .dot {{ animation-name: fly; }} @keyframes fly {{ {keys(*fly)} }}"]
    return "\n".join(lines) + "\n"


def _image(image: Image.Image, x: int, y: int, side: int) -> str:
    file = io.BytesIO()
    image.save(file, "webp", quality=85)
    data = base64.b64encode(file.getvalue()).decode()
    return f'<image x="{x}" y="{y}" width="{side}" height="{side}" href="data:image/webp;base64,{data}"/>'


def _short(name: str) -> str:
    return name if len(name) <= 11 else f"{name[:10]}…"
