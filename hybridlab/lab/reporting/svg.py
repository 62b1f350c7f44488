"""A figure as SVG for a page of HTML: small, with the page's own letters, and readable on a light and on a dark page.

Text, axes and ticks take the page's colours by name (`--ink`, `--paper`). Greys, and other colours that are too dark
for a dark page, are variables too, such as `--x332288`, to which `dark_colours` gives their value there.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from html import escape
from io import StringIO
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

INK, PAPER = "#010203", "#fdfefd"
"""What stands for the page's colours while a figure is drawn; no other colour is likely to be these."""
DARK = (0x16, 0x19, 0x1D)
"""The background of a dark page; the same as in templates/site.css."""
BLACK = "#000000"
"""matplotlib names no black fill, so that site.css has the rule for it."""
PIXELS = 1.75
"""Of the page for a point of the figure, at most."""
LEAST_CONTRAST = 3.0
"""Of lines and marks against the background (WCAG 2.2, 1.4.11)."""


def svg_of(draw: Callable[[], Figure], name: str, about: str) -> tuple[str, set[str]]:
    """A figure as an SVG element, and the colours in it that a dark page needs in another shade.

    name: begins every id in it, so that several can stand on one page. about: what a screen reader says.
    """
    import matplotlib

    theme: Any = dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), INK)
    theme |= {"figure.facecolor": PAPER, "axes.facecolor": "none", "svg.fonttype": "none", "svg.hashsalt": name}
    buffer = StringIO()
    with matplotlib.rc_context(theme):
        draw().savefig(buffer, format="svg", metadata={"Date": None})
    [(view, inner)] = re.findall(r'<svg[^>]* viewBox="([^"]*)"[^>]*>(.*)</svg>', buffer.getvalue(), flags=re.DOTALL)
    # Its style sheet would be that of the whole page; site.css has the same rule for figures.
    inner = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->|<style.*?</style>", "", inner, flags=re.DOTALL)
    colours: set[str] = {BLACK}
    # Only tags: the letters between them stay as they are.
    inner = re.sub(r"<[^>]*>", lambda tag: _small(_with_page_colours(tag[0], colours)), _with_ids(inner, name))
    inner = re.sub(r"\s*\n\s*", "\n", _without_plain_groups(inner.replace("<defs/>", "")))
    inner = _ALIKE.sub(_styled_once, inner)
    width = round(PIXELS * float(view.split()[2]))
    size = f"max-width:{width}px;min-width:min(34rem,{width}px)"
    title = f"<title>{escape(about, quote=False)}</title>"
    return f'<svg class="figure" role="img" style="{size}" viewBox="{view}">{title}{inner.strip()}</svg>', colours


def _small(tag: str) -> str:
    """A tag without digits, blanks and turns by 0 that nobody sees, and without the names of fonts: the page has its
    own."""
    tag = re.sub(r"font-family: [^;]*; ?", "", tag)
    tag = re.sub(r"-?\d+\.\d{2,}", _rounded, tag)
    tag = re.sub(r' transform="rotate\(-?0 [^"]*"|(?<=[;:]) ', "", tag)
    tag = re.sub(r' d="[^"]*"', lambda path: re.sub(r"\s*([A-Zz])\s*", r"\1", path[0]), tag)
    return tag.replace(" xlink:href=", " href=")


def _without_plain_groups(svg: str) -> str:
    """Without the groups that have no attribute (any more): they change nothing."""
    opened: list[bool] = []

    def tag(match: re.Match[str]) -> str:
        if match[0] != "</g>":
            opened.append(match[0] != "<g>")
            return match[0] if opened[-1] else ""
        return match[0] if opened.pop() else ""

    return re.sub(r"<g(?: [^>]*[^/>])?>|</g>", tag, svg)


_ALIKE = re.compile(r'<use [^>]* style="(?!(?:[^"]*;)?opacity:)([^"]*)"/>(?:\n<use [^>]* style="\1"/>)+')
"""Marks of one style, one after the other. `opacity` is no part of it: of a group it means the group as a whole."""


def _styled_once(marks: re.Match[str]) -> str:
    style = f' style="{marks[1]}"'
    return f"<g{style}>{marks[0].replace(style, '')}</g>"


def _rounded(number: re.Match[str]) -> str:
    """A tenth of a point for places in the figure, a hundredth for small numbers, such as widths and opacities."""
    value = float(number[0])
    return f"{value:.{1 if abs(value) >= 10 else 2}f}".rstrip("0").rstrip(".")


def _with_ids(svg: str, name: str) -> str:
    """Ids that something refers to, numbered, with the name before them; the others have no use."""
    used = dict.fromkeys(re.findall(r'(?:href="#|url\(#)([^")]+)', svg))
    numbered = {id: f"{name}-{number}" for number, id in enumerate(used)}
    svg = re.sub(r' id="([^"]*)"', lambda match: f' id="{numbered[match[1]]}"' if match[1] in used else "", svg)
    return re.sub(r'(href="#|url\(#)([^")]+)', lambda match: match[1] + numbered[match[2]], svg)


_COLOUR = re.compile(r"(fill|stroke|stop-color): ?(#[0-9a-f]{6})")


def _with_page_colours(tag: str, colours: set[str]) -> str:
    """A tag with variables of the page instead of colours that must change with it; these are added to colours."""

    def colour(match: re.Match[str]) -> str:
        what, code = match.groups()
        if code == INK:
            return f"{what}:var(--ink)"
        if code == PAPER:
            return f"{what}:var(--paper)"
        grey = len(set(_parts(code))) == 1
        # White is for letters and lines on colours, which stay as they are.
        if code == "#ffffff" or (not grey and contrast(_parts(code), DARK) >= LEAST_CONTRAST):
            return f"{what}:{code}"
        colours.add(code)
        return f"{what}:var(--x{code[1:]},{code})"

    return _COLOUR.sub(colour, tag)


def dark_colours(colours: Iterable[str]) -> str:
    """The variables of these colours on a dark page: a grey that stands out as much as on white, or the same hue, mixed
    with white until it can be seen."""
    return "".join(f"--x{code[1:]}:{_lighter(code)};" for code in sorted(colours))


def _lighter(code: str) -> str:
    parts = _parts(code)
    if len(set(parts)) == 1:
        value = round(DARK[1] + (255 - parts[0]) / 255 * (235 - DARK[1]))
        return f"#{value:02x}{value:02x}{value:02x}"
    mixed = ([round(part + (255 - part) * share / 100) for part in parts] for share in range(101))
    red, green, blue = next(colour for colour in mixed if contrast(colour, DARK) >= LEAST_CONTRAST + 1)
    return f"#{red:02x}{green:02x}{blue:02x}"


def _parts(code: str) -> Sequence[int]:
    return bytes.fromhex(code[1:])


def contrast(first: Sequence[int], second: Sequence[int]) -> float:
    """The contrast of two colours, from 1 to 21 (WCAG 2.2)."""
    low, high = sorted((_luminance(first), _luminance(second)))
    return (high + 0.05) / (low + 0.05)


def _luminance(colour: Sequence[int]) -> float:
    parts = [part / 255 for part in colour]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
