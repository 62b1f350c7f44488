"""Checks of an attention kind or an architecture on tiny inputs, before anything is trained.

    hybridlab check mine.py

Each check is a function of a `Subject` that raises `Wrong`, with one sentence about what is wrong and where to look, or
`Inapplicable`. The arithmetic is in fp64, where two ways to the same number differ by rounding alone.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import MISSING, asdict, dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from hybridlab.attention.heads import NEEDS, Attended, HeadGroup
from hybridlab.attention.kinds import AttentionKind, Full
from hybridlab.attention.mistakes import in_words
from hybridlab.attention.registry import ATTENTION_KINDS
from hybridlab.config.loading import is_file_name, is_preset, load_preset, parse_setting, preset_names
from hybridlab.config.resolve import resolve
from hybridlab.config.structures import final_structure
from hybridlab.errors import UserError, nearest
from hybridlab.evaluation.causality import TOLERANCE, worst_leak
from hybridlab.models.cache import KVCache
from hybridlab.models.decoder import Transformer, draw_weights, make_model
from hybridlab.models.export import load_checkpoint, save_model
from hybridlab.models.ledger.flops import convention_named, ledger
from hybridlab.plan.attention_map import AttentionMap
from hybridlab.plan.plan import Plan
from hybridlab.plan.shape import FAMILIES, Init, Shape
from hybridlab.plan.structure import Structure
from hybridlab.plugins import LOADED, is_own, load_plugin, place_of, summary

_EQUAL = 1e-10
"""The largest difference, relative to the largest number, of results in fp64 that should be equal."""
_WHOLE = 3
"""A setting of a kind that is a whole number and has no default."""
_LENGTH, _LONGEST = 24, 96
"""Tokens of the inputs, and as many where a window is long."""
_CAUSAL_LENGTH = 40
"""Tokens with which causality is probed: from 33 on, short windows are computed in blocks."""
_SHAPE: dict[str, Any] = {"layers": 2, "width": 24, "heads": 4, "kv_heads": 2, "head_width": 8, "ffn_width": 40}
"""Of the model in which a kind is checked."""


class Wrong(Exception):
    """A check has failed; its text is one sentence."""


class Inapplicable(Exception):
    """There is nothing to check; its text is the reason."""


@dataclass(frozen=True)
class Finding:
    """verdict: ok, failed, not applicable, or not reached because an earlier check failed. text: what was checked, or
    what is wrong and where to look."""

    check: str
    verdict: str
    text: str


@dataclass(frozen=True)
class Checked:
    """what: attention kind or arch. settings: those of the kind."""

    what: str
    name: str
    settings: dict[str, Any]
    findings: list[Finding]

    @property
    def failed(self) -> int:
        return sum(finding.verdict == "failed" for finding in self.findings)

    @property
    def passed(self) -> bool:
        return not self.failed

    def to_json(self) -> dict[str, Any]:
        facts = {"what": self.what, "name": self.name, "settings": self.settings, "passed": self.passed}
        return {**facts, "checks": [asdict(finding) for finding in self.findings]}


class Subject:
    """The model that is checked, in fp64 and with the kernel `eager`, and its inputs."""

    def __init__(self, structure: Structure) -> None:
        self.structure = structure
        self.model = self.fresh(torch.float64)
        learned = structure.shape.max_positions or _LONGEST
        windows = [window for kind in self.kinds for window in kind.softmaxes if window is not None]
        self.length = min(max([_LENGTH, *(window + 8 for window in windows)]), _LONGEST, learned)

    @cached_property
    def kinds(self) -> list[AttentionKind]:
        return list(self.structure.map.each_kind())

    def fresh(self, dtype: torch.dtype, attention_map: AttentionMap | None = None) -> Transformer:
        """A model with these weights of its own."""
        model = make_model(self.structure.changed(map=attention_map), "eager")
        draw_weights(model, 0)
        return self.with_gates(model.to(dtype))

    def with_gates(self, model: Transformer) -> Transformer:
        """The model with gates of one half where its map is still being learned."""
        rows = enumerate(self.structure.map.layers)
        learned = {layer: row for layer, row in rows if any(kind.mask is None for kind in row)}
        model.gates = {layer: torch.full((len(row),), 0.5) for layer, row in learned.items()} or None
        return model

    def tokens(self, length: int | None = None, rows: int = 3) -> Tensor:
        """(rows, length) random token ids."""
        generator = torch.Generator().manual_seed(1)
        return torch.randint(self.structure.shape.vocab, (rows, length or self.length), generator=generator)

    def heads(self, kind: AttentionKind, length: int, dtype: torch.dtype = torch.float64, rows: int = 2) -> HeadGroup:
        """Four query heads and two KV heads of width 8, with random numbers."""
        generator = torch.Generator().manual_seed(2)
        q, k, v = (torch.randn(rows, heads, length, 8, generator=generator).to(dtype) for heads in (4, 2, 2))
        gate = torch.full((2,), 0.5) if kind.mask is None else None
        return HeadGroup(q, k, v, "eager", gate, causal=self.structure.causal)

    def see(self, method: str) -> str:
        """Where to look: a method of the kind that is the user's; nothing where no kind is."""
        own_kinds = [kind for kind in self.kinds if is_own(kind)]
        return f"; see {' or '.join(place_of(kind, method) for kind in own_kinds)}" if own_kinds else ""


def difference(output: Tensor, reference: Tensor) -> float:
    """The largest difference of two tensors, relative to the largest number of the second; infinite for NaN."""
    if not reference.numel():
        return 0.0
    relative = float((output - reference).abs().max() / reference.abs().max().clamp_min(1e-12))
    return math.inf if math.isnan(relative) else relative


# ---- the checks ----


def outputs(subject: Subject) -> None:
    """Wrong unless attend gives outputs of the shape and type of q, which are finite, and weights of their shape."""
    for kind in subject.kinds:
        for dtype in (torch.float64, torch.float32, torch.bfloat16):
            for length in (1, 7):
                for need in NEEDS:
                    _check_outputs(kind, subject.heads(kind, length, dtype), need)


def _check_outputs(kind: AttentionKind, heads: HeadGroup, need: str) -> None:
    inputs = f"for q {tuple(heads.q.shape)} and k, v {tuple(heads.k.shape)} in {_type(heads.q)}"
    attended, see = kind.attend(replace(heads, need=need)), f"; see {place_of(kind, 'attend')}"
    if not isinstance(attended, Attended):
        raise Wrong(f"attend returns {type(attended).__name__} {inputs}; return Attended(out){see}")
    if attended.out.shape != heads.q.shape:
        raise Wrong(f"attend gives out of shape {tuple(attended.out.shape)} {inputs}; it must have the shape of q{see}")
    if attended.out.dtype != heads.q.dtype:
        raise Wrong(f"attend gives {_type(attended.out)} {inputs}; return out.to(heads.q.dtype){see}")
    if not attended.out.isfinite().all():
        raise Wrong(f"attend gives numbers that are not finite {inputs}{see}")
    rows = (*heads.q.shape[:2], heads.q.shape[2] if need == "full" else 1)
    shapes = {"weights": (*rows, heads.q.shape[2]), "keys": rows}
    for name, shape in shapes.items() if need != "none" else ():
        tensor = getattr(attended, name)
        if tensor is not None and tuple(tensor.shape) != shape:
            raise Wrong(f"attend gives {name} of shape {tuple(tensor.shape)} for need={need!r}, not {shape}{see}")


def _type(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def rows(subject: Subject) -> None:
    """Wrong if a row's result depends on the other rows of the batch."""
    tokens = subject.tokens()
    together = subject.model(tokens).logits
    for row in range(len(tokens)):
        off = difference(together[row], subject.model(tokens[row : row + 1]).logits[0])
        if off > _EQUAL:
            raise Wrong(
                f"row {row} of a batch of {len(tokens)} differs by {off:.2g} of its scale from the same row alone; "
                f"mix along the positions, dimension 2, and not along the rows, dimension 0{subject.see('attend')}"
            )


def causality(subject: Subject) -> None:
    """Wrong if a later token, or the number of later tokens, changes an earlier output."""
    if not subject.structure.causal:
        raise Inapplicable("an encoder's tokens see both sides")
    longest = min(_CAUSAL_LENGTH, subject.structure.shape.max_positions or _CAUSAL_LENGTH)
    # In fp32, in which the kernel `auto` is that of training.
    sealed = subject.fresh(torch.float32, subject.structure.map.sealed())
    for kernel in ("eager", "sdpa", "auto"):
        sealed.kernel = kernel
        leak = worst_leak(sealed, (2, 3, longest // 2 + 1, longest))
        if not leak.change <= TOLERANCE:
            raise Wrong(
                f"with kernel {kernel}, changing token {leak.changed_token} of {leak.length} moves the output at "
                f"position {leak.seen_at} by {leak.change:.2g} of its scale; hide later keys, as heads.softmax does"
                f"{subject.see('attend')}"
            )
    if not subject.structure.settled:
        return
    tokens = subject.tokens(longest)
    logits = subject.model(tokens).logits
    for length in (1, 2, longest // 2, longest - 1):
        off = difference(subject.model(tokens[:, :length]).logits, logits[:, :length])
        if off > _EQUAL:
            raise Wrong(
                f"the outputs of the first {length} tokens change by {off:.2g} of their scale with {longest} tokens in "
                f"the sequence; compute nothing from its length{subject.see('attend')}"
            )


def mask(subject: Subject) -> None:
    """Wrong unless queries see as far as window and mask declare, and no farther."""
    for kind in subject.kinds:
        sees = _influences(subject, kind)
        length, see = len(sees), f"; see {place_of(kind, 'attend')} and {place_of(kind, 'window')}"
        declared = None if None in kind.softmaxes else max((w for w in kind.softmaxes if w), default=kind.window)
        query, key = torch.arange(length)[:, None], torch.arange(length)
        if declared is not None:
            beyond = (sees & ((query - key).abs() >= declared)).nonzero()
            if len(beyond):
                i, j = beyond[0].tolist()
                raise Wrong(f"window declares {declared} keys, but the query at {i} sees the key at {j}{see}")
        reach = int(((query - key) * sees).max()) + 1
        required = min(length, declared or length)
        if reach < required and (declared is not None or kind.mask == 1):
            what = f"window declares {declared} keys" if declared else "window is None, so that every key is declared"
            hint = "" if declared else "; set window, or let mask be 0"
            raise Wrong(f"{what}, but no query sees farther than {reach} keys, its own included{hint}{see}")
        keys = kind.attend(replace(subject.heads(kind, length, rows=1), need="full")).keys
        counted = None if keys is None else keys[0].amax(0)
        if counted is not None and bool((sees.sum(-1) > counted).any()):
            i = int((sees.sum(-1) > counted).nonzero()[0])
            raise Wrong(f"attend returns keys {int(counted[i])} for the query at {i}, which sees {sees[i].sum()}{see}")


def _influences(subject: Subject, kind: AttentionKind) -> Tensor:
    """(S, S): whether the output of any head at a query depends on the key and value at a position. Later ones are left
    out in a decoder."""
    heads = subject.heads(kind, subject.length, rows=1)
    length, place = subject.length, torch.arange(subject.length)
    generator = torch.Generator().manual_seed(3)
    changed = {name: getattr(heads, name).repeat(length, 1, 1, 1) for name in ("q", "k", "v")}
    for name in ("k", "v"):
        noise = 2 * torch.randn(length, 2, 8, generator=generator, dtype=torch.float64)
        changed[name][place, :, place] += noise
    many = HeadGroup(**changed, kernel="eager", gate=heads.gate, causal=heads.causal)
    moved = (kind.attend(many).out - kind.attend(heads).out).abs().amax((1, 3)).T > _EQUAL
    return moved.tril() if heads.causal else moved


def padding(subject: Subject) -> None:
    """Wrong if padding after a row changes one of its outputs, or is not finite itself."""
    tokens = subject.tokens()
    lengths = [subject.length, subject.length // 2 + 1, subject.length - 3]
    valid = torch.arange(subject.length) < torch.tensor(lengths)[:, None]
    try:
        padded = subject.model(tokens, attention_mask=valid).logits
    except UserError as refused:
        raise Inapplicable(f"refused: {refused}") from None
    if not padded.isfinite().all():
        raise Wrong(
            "with padding, outputs are not finite, which spoils the gradients of the whole batch; let a query at "
            f"padding see its own key{subject.see('attend')}"
        )
    for row, length in enumerate(lengths):
        off = difference(padded[row, :length], subject.model(tokens[row : row + 1, :length]).logits[0])
        if off > _EQUAL:
            raise Wrong(
                f"a row of {length} tokens differs by {off:.2g} of its scale once {subject.length - length} tokens of "
                f"padding follow; hide keys where heads.valid is False{subject.see('attend')}"
            )


def documents(subject: Subject) -> None:
    """Wrong if a packed document changes an output of the next one in its row."""
    tokens, first = subject.tokens(rows=1), subject.length // 3
    segments = (torch.arange(subject.length) >= first).long()[None]
    changed = tokens.clone()
    changed[:, :first] = (tokens[:, :first] + 1) % subject.structure.shape.vocab
    try:
        original, moved = (subject.model(ids, segment_ids=segments).logits[:, first:] for ids in (tokens, changed))
    except UserError as refused:
        raise Inapplicable(f"refused: {refused}") from None
    if (off := difference(moved, original)) > _EQUAL:
        raise Wrong(
            f"other tokens in the first document move the outputs of the second by {off:.2g} of their scale; hide keys "
            "of other heads.segments, or raise a UserError where they are given"
            f"{subject.see('attend')}"
        )


def cache(subject: Subject) -> None:
    """Wrong unless decoding with a cache gives the full pass, and the cache holds what is declared."""
    tokens, length = subject.tokens(), subject.length
    try:
        KVCache(subject.structure, len(tokens))
        subject.model(tokens[:, :1], cache=KVCache(subject.structure, len(tokens)))
    except UserError as refused:
        raise Inapplicable(str(refused).removeprefix("cache: ")) from None
    lengths = torch.tensor([length, length // 2 + 1, length - 3])
    for valid in (torch.ones_like(tokens, dtype=torch.bool), torch.arange(length) < lengths[:, None]):
        full = subject.model(tokens, attention_mask=valid).logits
        for capacity, cuts in ((None, [1]), (length, [length // 2, length // 2 + 1]), (None, [*range(1, length)])):
            stored = KVCache(subject.structure, len(tokens), capacity)
            for start, end in zip([0, *cuts], [*cuts, length], strict=True):
                logits = subject.model(tokens[:, start:end], valid[:, start:end], cache=stored).logits
                real = valid[:, start:end]
                if (off := difference(logits[real], full[:, start:end][real])) > _EQUAL:
                    method = "slot" if start else "attend"
                    raise Wrong(
                        f"after {start} cached tokens, the outputs of the next {end - start} differ by {off:.2g} of "
                        f"their scale from those of the full pass{subject.see(method)}"
                    )
            stored = stored.selected([2, 0])
    _check_steps(subject, lengths // 2)
    _check_room(subject)


def _check_steps(subject: Subject, lengths: Tensor) -> None:
    """Wrong unless the steps of compiled generation, after prompts of these lengths, give the full pass, if all slots
    have them."""
    tokens = subject.tokens()
    prompts = int(lengths.max())
    stored = KVCache(subject.structure, len(tokens), subject.length)
    for _ in range(2):
        stored.clear()  # compiled generation takes a cache for several calls
        subject.model(tokens[:, :prompts], torch.arange(prompts) < lengths[:, None], cache=stored)
    try:
        stored.require_steps()
    except UserError:
        return
    full, rows, at = subject.model(tokens).logits, torch.arange(len(tokens)), lengths
    while int(at.max()) < subject.length:
        logits = subject.model.step(tokens[rows, at][:, None], stored, at)[:, 0]
        if (off := difference(logits, full[rows, at])) > _EQUAL:
            raise Wrong(
                f"a step of compiled generation differs by {off:.2g} of its scale from the full pass; mend the step of "
                "the slot, or leave it out"
            )
        at = at + 1


def _check_room(subject: Subject) -> None:
    """Wrong for a slot that keeps more numbers than its kind declares, on which the planned memory rests."""
    stored = KVCache(subject.structure, 1)
    subject.model(subject.tokens(rows=1), cache=stored)
    width = subject.structure.shape.head_width
    for place, visit in subject.structure.attention_places():
        entries = subject.structure.plan.tokens_at(place, subject.length)
        kinds = list(dict.fromkeys(subject.structure.kinds(visit)))
        for kind, (heads, slot) in zip(kinds, stored.visits[place].slots, strict=True):
            if entries < (kind.window or 0):
                continue  # a ring has room for all of its window from the start
            elements = sum(tensor.numel() for tensor in slot.tensors())
            declared = 2 * kind.cached(entries) * width * len(heads.kv)
            declared += kind.sums(entries, width) * len(heads.query)
            if elements > declared:
                raise Wrong(
                    f"after {entries} tokens the slot of {kind.name} keeps {elements:,} numbers, and cached and sums "
                    f"declare {declared:,}; see {place_of(kind, 'cached')}"
                )


def gradients(subject: Subject) -> None:
    """Wrong unless gradients are finite and reach every parameter that changes the outputs."""
    tokens = subject.tokens()
    with torch.enable_grad():
        before = subject.model(tokens).logits
        before.square().mean().backward()
    for name, parameter in subject.model.named_parameters():
        gradient, parameter.grad = parameter.grad, None
        if gradient is not None and not gradient.isfinite().all():
            raise Wrong(f"the gradient of {name} is not finite{subject.see('attend')}")
        if gradient is not None and gradient.any():
            continue
        original = parameter.detach().clone()
        with torch.no_grad():
            parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(4)))
            moved = difference(subject.model(tokens).logits, before)
            parameter.copy_(original)
        if moved > _EQUAL:
            raise Wrong(
                f"{name} changes the outputs but gets no gradient; a detach, a no_grad or a whole number cuts it off"
                f"{subject.see('attend')}"
            )


def cost(subject: Subject) -> None:
    """Wrong unless torch counts the FLOPs that keys and products bill."""
    length, rules = subject.length, convention_named("executed").of(subject.structure)
    exact = True
    for kind in subject.kinds:
        heads = subject.heads(kind, length, rows=1)
        counted = _counted(kind.attend, heads)
        products = 2 * 8 * kind.keys(length, rules) + kind.products(length, rules)
        billed = 2 * heads.q.shape[1] * length * products
        exact &= counted == billed
        # What is no matrix product, such as a running sum, is billed but not counted.
        if counted > 0 and not math.isclose(counted, billed, rel_tol=1e-6):
            raise Wrong(
                f"torch counts {counted:,.0f} FLOPs in the attention of {length} tokens, and keys and products bill "
                f"{billed:,.0f}; see {place_of(kind, 'keys')}"
            )
    if exact:
        counted = _counted(subject.model, subject.tokens(rows=1))
        billed = ledger(subject.structure, length, "executed").forward
        if not math.isclose(counted, billed, rel_tol=1e-6):
            raise Wrong(f"torch counts {counted:,.0f} FLOPs in {length} tokens, and the ledger bills {billed:,.0f}")


def _counted(compute: Callable[[Any], Any], argument: Any) -> float:
    """FLOPs of the matrix products of a call."""
    # Fused attention would be counted as nothing.
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        compute(argument)
    return float(counter.get_total_flops())


def saving(subject: Subject) -> None:
    """Wrong unless a saved model that is loaded again gives equal outputs."""
    model, tokens = subject.fresh(torch.float32), subject.tokens()
    with tempfile.TemporaryDirectory() as folder:
        save_model(Path(folder) / "model", model, {"parents": []})
        again = subject.with_gates(load_checkpoint(Path(folder) / "model", kernel="eager"))
    if again.structure != subject.structure:
        raise Wrong(f"the structure that is loaded is another one than was saved{subject.see('to_json')}")
    if not torch.equal(again(tokens).logits, model(tokens).logits):
        raise Wrong(f"the model that is loaded gives other outputs than the one that was saved{subject.see('attend')}")


CHECKS: dict[Callable[[Subject], None], str] = {
    outputs: "shape and type of q, finite numbers",
    rows: "no row depends on the other rows of the batch",
    causality: "no output depends on later tokens, by any kernel",
    mask: "queries see the keys that window and mask declare",
    padding: "padding changes no output and is finite itself",
    documents: "no packed document sees the one before it",
    cache: "decoding equals the full pass, with the declared cache",
    gradients: "finite, at all parameters that change the outputs",
    cost: "the FLOPs that keys and products bill",
    saving: "a loaded model equals the saved one",
}
"""Check → what one that passes says, in this order."""
_BASIC = (outputs, rows)
"""Checks without which the later ones say nothing."""


def findings(structure: Structure) -> Iterator[Finding]:
    """What each check finds in the model of a structure."""
    subject, failed = None, ""
    for check, text in CHECKS.items():
        name, verdict = check.__name__, "ok"
        if failed:
            yield Finding(name, "not reached", f"see {failed}")
            continue
        try:
            subject = subject or Subject(structure)
            with torch.no_grad():
                check(subject)
        except Inapplicable as reason:
            verdict, text = "not applicable", str(reason)
        except Exception as error:  # the code of a kind can raise anything
            verdict, text = "failed", _in_words(error, structure, subject)
        if verdict == "failed" and check in _BASIC:
            failed = name
        yield Finding(name, verdict, text)


def _in_words(error: Exception, structure: Structure, subject: Subject | None) -> str:
    """What is wrong, of a check that has failed. subject: None if it could not be made."""
    if isinstance(error, Wrong):
        return str(error)
    see = "" if subject is None else subject.see("attend")
    if isinstance(error, UserError):
        return f"{error}{see}"
    return in_words(error, structure.map.each_kind()) or f"the model raised {summary(error)}{see}"


# ---- what is checked ----


def check_named(target: str, size: str | None = None, settings: Sequence[str] = ()) -> list[Checked]:
    """The checks of an attention kind, of an architecture, or of all kinds that a file registers.

    target: the name of a kind or an arch, ./mine.yaml, or mine.py. size: of an arch. settings: texts of --set, of the
    kind or the arch. UserError for anything that does not fit.
    """
    if target.endswith(".py"):
        names = _kinds_of(target)
    elif not is_file_name(target) and target in ATTENTION_KINDS:
        names = [target]
    else:
        return [_checked_arch(target, size, settings)]
    if size is not None:
        raise UserError(f"--size {size} has no effect on an attention kind; it is for the check of an arch")
    kinds = [_kind(name, settings) for name in names]
    return [Checked("attention kind", kind.name, _shown(kind), list(findings(_around(kind)))) for kind in kinds]


def _shown(kind: AttentionKind) -> dict[str, Any]:
    """The settings of a kind, as JSON."""
    plain = (str, int, float, bool, type(None))
    return {name: value if isinstance(value, plain) else str(value) for name, value in asdict(kind).items()}


def _kinds_of(path: str) -> list[str]:
    """The attention kinds that a plug-in's file registers; UserError if there are none."""
    load_plugin(path)
    items = LOADED[Path(path).stem].items
    names = [name for what, name in items if what == ATTENTION_KINDS.what]
    if not names:
        registered = ", ".join(f"the {what} {name}" for what, name in items)
        beside = f", only {registered}" if registered else ""
        raise UserError(
            f"check {path}: it registers no attention kind{beside}; write @register_kind above the class of one"
        )
    return names


def _kind(name: str, settings: Sequence[str]) -> AttentionKind:
    """An attention kind with these settings, which are whole numbers of 3 where they have no default."""
    kind = ATTENTION_KINDS.get(name)
    values: dict[str, Any] = {}
    for text in settings:
        values |= parse_setting(text).values
    declared = {field.name: field for field in fields(kind)}
    for setting in values:
        if setting not in declared:
            hint = nearest(setting, list(declared), f"it takes {', '.join(declared) or 'no settings'}")
            raise UserError(f"--set {setting}: the attention kind {name} has no such setting; {hint}")
    for field in declared.values():
        if field.name in values or field.default is not MISSING or field.default_factory is not MISSING:
            continue
        if field.type not in (int, "int"):
            raise UserError(f"check {name}: {field.name} has no default; add --set {field.name}=VALUE")
        values[field.name] = _WHOLE
    try:
        return kind(**values)
    except UserError:
        raise
    except Exception as error:  # its __post_init__ can raise anything
        raise UserError(f"check {name}: it cannot be made of {values} ({summary(error)})") from error


def _around(kind: AttentionKind) -> Structure:
    """A small model with a kind: in a decoder, unless only an encoder can have it, and beside full attention."""
    shape = Shape(family="qwen3", **_SHAPE, vocab=61, init=Init(std=0.2))
    try:
        kind.check(True)
    except UserError:
        shape = Shape(family="bert", **_SHAPE, vocab=61, init=Init(std=0.2), max_positions=_LONGEST)
    return Structure(shape, Plan.plain(2, shape.traits.parallel), AttentionMap(((kind, kind), (kind, Full()))))


def _checked_arch(name: str, size: str | None, settings: Sequence[str]) -> Checked:
    """The checks of an arch, in the structure that it has at the end of its training."""
    if not is_file_name(name) and not is_preset("arch", name):
        names = [*ATTENTION_KINDS.names(), *preset_names("arch")]
        otherwise = "give the file of a kind, FILE.py, or of an arch, ./FILE.yaml"
        raise UserError(
            f"check {name}: there is no attention kind or arch of this name; {nearest(name, names, otherwise)}"
        )
    family = load_preset("arch", name).values.get("shape", {}).get("family")
    encoder = family in FAMILIES and not FAMILIES[family].causal
    config = resolve(name, size or ("bert-tiny" if encoder else "tiny"), settings=settings)
    return Checked("arch", config.arch, {"size": config.size}, list(findings(final_structure(config))))
