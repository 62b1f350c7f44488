"""Tables in LaTeX that fit a page: booktabs, every text escaped, wide tables cut into panels.

A paper needs `\\usepackage{array,booktabs,graphicx}`, and takes a table with `\\input{table.tex}`.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

_MACROS = (
    "α alpha β beta γ gamma δ delta ε epsilon ϵ epsilon ζ zeta η eta θ theta ι iota κ kappa λ lambda μ mu ν nu ξ xi "
    "π pi ρ rho σ sigma τ tau υ upsilon φ phi ϕ phi χ chi ψ psi ω omega Γ Gamma Δ Delta Θ Theta Λ Lambda Ξ Xi Π Pi "
    "Σ Sigma Υ Upsilon Φ Phi Ψ Psi Ω Omega ± pm × times ÷ div · cdot ⋅ cdot ∘ circ ≤ leq ≥ geq ≠ neq ≈ approx ∼ sim "
    "∝ propto « ll » gg → to ← leftarrow ↔ leftrightarrow ↑ uparrow ↓ downarrow ⇒ Rightarrow ∈ in ∞ infty ∑ sum ∏ prod "
    "√ surd ✓ surd ✗ times ∂ partial ∇ nabla ℓ ell ∥ Vert ‖ Vert ∩ cap ∪ cup ∀ forall ∃ exists ⊙ odot ⊕ oplus "
    "⌈ lceil ⌉ rceil ⌊ lfloor ⌋ rfloor"
)
"""Each symbol and the name of its macro."""
_MATH = {
    **{symbol: f"\\{name}" for symbol, name in re.findall(r"(\S) (\w+)", _MACROS)},
    **{"ο": "o", "−": "-", "°": r"^{\circ}", "′": r"{}'"},
    **{"½": r"\frac{1}{2}", "¼": r"\frac{1}{4}", "¾": r"\frac{3}{4}"},
    **{raised: f"^{{{plain}}}" for plain, raised in zip("0123456789+-=()n", "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁼⁽⁾ⁿ", strict=True)},
    **{lowered: f"_{{{plain}}}" for plain, lowered in zip("0123456789+-=()", "₀₁₂₃₄₅₆₇₈₉₊₋₌₍₎", strict=True)},
}
_TEXT = {
    "\\": r"\textbackslash{}",
    **{sign: f"\\{sign}" for sign in "{}&%_#$"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "`": r"\`{}",
    '"': "''",
    # After \\ a bracket or a star would be an argument of it.
    "[": "{[}",
    "]": "{]}",
    "*": "{*}",
    "–": "--",
    "—": "---",
    "…": r"\dots{}",
    "‘": "`",
    "’": "'",
    "“": "``",
    "”": "''",
    "•": r"\textbullet{}",
    "§": r"\S{}",
    "¶": r"\P{}",
    "©": r"\copyright{}",
}
"""Each works in every font encoding, without a package."""
_PASSED = "ÀÁÂÃÄÅÆÇÈÉÊËÌÍÎÏÑÒÓÔÕÖØÙÚÛÜÝßàáâãäåæçèéêëìíîïñòóôõöøùúûüýÿŒœŠšŽžŁłÖő"
_LIGATURE = {"-": "-{}", "'": "'{}", ",": ",{}"}


def escape(text: str) -> str:
    """Text as LaTeX that prints it, in one pass over its characters.

    A character that LaTeX cannot print without further packages is printed as its number, such as U+4E2D.
    """
    return re.sub(r"-(?=-)|'(?=')|,(?=,)|.", _escaped, " ".join(unicodedata.normalize("NFC", text).split()))


def _escaped(match: re.Match[str]) -> str:
    letter, following = match[0], match.string[match.end() : match.end() + 1]
    if letter in _LIGATURE and following == letter:
        return _LIGATURE[letter]
    if letter in _MATH:
        return f"${_MATH[letter]}$"
    if letter in _TEXT:
        return _TEXT[letter]
    if letter in _PASSED or " " <= letter <= "~":
        return letter
    return f"U+{ord(letter):04X}"


# ---- tables ----

LINE = 104
"""Characters of a part of a table with the gaps between columns; a line of \\footnotesize in an article holds about
90, so that a full part is scaled down a little."""
_GAP = 2
_LINES = 48
"""Lines of \\footnotesize on a page, with room for the caption."""
_LONG = 34
"""Characters of a text above which a column wraps its lines."""


@dataclass(frozen=True)
class Panel:
    """A part of a table with the same row names as the others. title: above it, "" for none. heads: of the columns,
    the row names' first. rows: texts, one for each head. numeric: whether each column is set to the right."""

    title: str
    heads: list[str]
    rows: list[list[str]]
    numeric: list[bool]


def tex_table(identifier: str, caption: str, panels: Sequence[Panel], notes: Sequence[str] = ()) -> str:
    """One float, or several on pages of their own if the panels do not fit one. notes: lines below the last panel.

    Each panel is at most as wide as the text; a single column that is wider is scaled down.
    """
    parts = [part for panel in panels for narrow in _narrow(panel) for part in _short(narrow)]
    heights = [4 + sum(_row_heights(part)) for part in parts]
    groups = packed(heights, _LINES)
    pages = [[parts[i] for i in group] for group in groups]
    # A line of the notes, in \\scriptsize, holds about 110 characters.
    below = sum(-(-len(note) // 110) for note in notes) + 1
    if notes and pages and below + sum(heights[i] for i in groups[-1]) > _LINES:
        pages.append([])
    head = ["% Needs \\usepackage{array,booktabs,graphicx}.", ""]
    floats = [
        _float(identifier, caption, page, number, len(pages), notes if number == len(pages) else ())
        for number, page in enumerate(pages, 1)
    ]
    return "\n".join([*head, *floats])


def _float(identifier: str, caption: str, panels: list[Panel], number: int, count: int, notes: Sequence[str]) -> str:
    part = f" (part {number} of {count})" if count > 1 else ""
    suffix = f"-{number}" if number > 1 else ""
    lines = [r"\begin{table}[!htbp]", r"\centering", r"\footnotesize", r"\setlength{\tabcolsep}{4pt}"]
    lines += [rf"\caption{{{escape(caption)}{part}}}", rf"\label{{tab:{identifier}{suffix}}}\par\smallskip"]
    for i, panel in enumerate(panels):
        lines += [r"\par\medskip"] if i else []
        lines += [rf"\textit{{{escape(panel.title)}}}\par\smallskip"] if panel.title else []
        lines += _tabular(panel)
    for note in notes:
        lines += [rf"\par\smallskip\parbox{{\linewidth}}{{\scriptsize {escape(note)}}}"]
    return "\n".join([*lines, r"\end{table}", ""])


def _tabular(panel: Panel) -> list[str]:
    """A tabular that is never wider than the text."""
    lines = [
        r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%",
        rf"\begin{{tabular}}{{{_columns(panel)}}}",
    ]
    lines += [r"\toprule", _line(panel.heads), r"\midrule", *map(_line, panel.rows)]
    return [*lines, r"\bottomrule", r"\end{tabular}%", "}"]


def _line(texts: list[str]) -> str:
    return " & ".join(map(escape, texts)) + r" \\"


def _columns(panel: Panel) -> str:
    """The columns of the tabular: numbers to the right, long texts in several lines."""
    kinds = []
    for i, numeric in enumerate(panel.numeric):
        texts = [row[i] for row in (panel.heads, *panel.rows)]
        width = max(_LONG, max(len(word) for text in texts for word in (text.split() or [""])) * 1.2)
        if numeric:
            kinds.append("r")
        elif max(map(len, texts)) <= _LONG:
            kinds.append("l")
        else:
            kinds.append(rf">{{\raggedright\arraybackslash}}p{{{min(0.9, width / 90):.2f}\linewidth}}")
    return "".join(kinds)


def _widths(panel: Panel) -> list[int]:
    """Characters of each column, with the gap behind it."""
    widths = [max(len(row[i]) for row in (panel.heads, *panel.rows)) for i in range(len(panel.heads))]
    return [
        (width if numeric else min(width, _LONG)) + _GAP for width, numeric in zip(widths, panel.numeric, strict=True)
    ]


def _narrow(panel: Panel) -> Iterator[Panel]:
    """The panel as parts that fit a line, each with the row names."""
    widths = _widths(panel)
    for number, group in enumerate(packed(widths[1:], LINE - widths[0]) or [[]]):
        chosen = [0, *(i + 1 for i in group)]
        yield Panel(
            panel.title if number == 0 else f"{panel.title} (continued)" if panel.title else "",
            [panel.heads[i] for i in chosen],
            [[row[i] for i in chosen] for row in panel.rows],
            [panel.numeric[i] for i in chosen],
        )


def _short(panel: Panel) -> Iterator[Panel]:
    """The panel as parts that are not longer than a page."""
    for group in packed(_row_heights(panel), _LINES - 4) or [[]]:
        yield replace(panel, rows=[panel.rows[i] for i in group])


def _row_heights(panel: Panel) -> list[int]:
    """Lines of each row, whose long texts wrap."""
    lines = [
        [1 if numeric else -(-len(text) // (_LONG - 6)) for text, numeric in zip(row, panel.numeric, strict=True)]
        for row in panel.rows
    ]
    return [max(row) or 1 for row in lines]


def packed(needed: Sequence[int], room: int) -> list[list[int]]:
    """The indices of things that need so much room each, in groups that have so much; what needs more is alone."""
    groups, left = list[list[int]](), 0
    for i, size in enumerate(needed):
        if not groups or size > left:
            groups.append([])
            left = room
        groups[-1].append(i)
        left -= size
    return groups
