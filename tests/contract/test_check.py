"""`hybridlab check` finds what is wrong with an attention kind, names it, and passes all that is built in."""

import json
import math
import re
from dataclasses import dataclass, replace

import pytest
import torch

from hybridlab.attention.belief import Belief
from hybridlab.attention.heads import Attended
from hybridlab.attention.kinds import AttentionKind, Full, Mixed, Window
from hybridlab.attention.registry import register_kind
from hybridlab.attention.slots import KeyValues
from hybridlab.config.loading import preset_names
from hybridlab.errors import UserError
from hybridlab.evaluation.check import CHECKS, _around, check_named, findings
from tests.combinations import some
from tests.plugins import fresh_plugins


@dataclass(frozen=True)
class Right(AttentionKind):
    """Full attention, written out; the kinds below each change one thing."""

    name, letter, colour = "own", "o", "#009E73"
    hides_later = hides_documents = True

    def seen(self, heads):
        """(B, 1, S, S)"""
        at = torch.arange(heads.q.shape[2])
        seen = (at <= at[:, None] + (0 if self.hides_later else 1))[None]
        if heads.segments is not None and self.hides_documents:
            seen = seen & (heads.segments[:, :, None] == heads.segments[:, None])
        return seen[:, None]

    def scores(self, heads):
        k = heads.k.repeat_interleave(heads.group, 1)
        return heads.q @ k.transpose(2, 3) / math.sqrt(k.shape[3])

    def attend(self, heads):
        weights = self.scores(heads).masked_fill(~self.seen(heads), -math.inf).softmax(-1)
        return Attended(weights @ heads.v.repeat_interleave(heads.group, 1))


class OfKeyHeads(Right):
    def attend(self, heads):
        return Attended(heads.v)


class Bare(Right):
    def attend(self, heads):
        return super().attend(heads).out


class InFloats(Right):
    def attend(self, heads):
        found = super().attend(heads)
        return Attended(found.out * torch.ones(heads.q.shape[2], 1))


class PeeksAhead(Right):
    hides_later = False


class KnowsTheLength(Right):
    def scores(self, heads):
        return super().scores(heads) / heads.q.shape[2]


class MixesRows(Right):
    def attend(self, heads):
        out = super().attend(heads).out
        return Attended(out + out.mean(0))


class ForgetsTheWindow(Right):
    window = 4

    def slot(self, standard):
        return standard(None)

    def cached(self, positions):
        return positions


class ShortSight(Right):
    """Sees four keys, and declares all."""

    def attend(self, heads):
        return heads.softmax(4)

    def slot(self, standard):
        return standard(4)


class ForgetsDocuments(Right):
    hides_documents = False


class NoNumberForPadding(Right):
    def seen(self, heads):
        seen = super().seen(heads)
        return seen if heads.valid is None else seen & heads.valid[:, None, :, None]


class ShortCache(Right):
    window = 4

    def attend(self, heads):
        return heads.softmax(4)

    def slot(self, standard):
        return standard(3)


class LargeCache(ShortCache):
    def slot(self, standard):
        return standard(None, lambda query, key: key > query - 4)


class Unscaled(KeyValues):
    def attend(self, q, *others):
        return super().attend(q * math.sqrt(q.shape[-1]), *others)


class OtherScaleInTheCache(Right):
    def slot(self, standard):
        return Unscaled(None)


class LateStep(KeyValues):
    def step(self, q, k, v, serving, at):
        return super().step(q, k, v, serving, at + 1)


class OtherPlacesInASteppedCache(Right):
    def slot(self, standard):
        return LateStep(None, capacity=standard.capacity)


class CutOff(Right):
    def scores(self, heads):
        return super().scores(heads).detach()


class Cheap(Right):
    def keys(self, length, counting):
        return counting.keys(length, None) / 2


class Raises(Right):
    def scores(self, heads):
        return heads.q @ heads.k.transpose(2, 3)


class RuleAndWindow(Right):
    window = 4

    def attend(self, heads):
        return heads.softmax(4, lambda query, key: key >= 0)

    def slot(self, standard):
        return standard(4)


class NoWindow(Right):
    @property
    def window(self):
        return self.width


@dataclass(frozen=True)
class NotJson(Right):
    offsets: frozenset = frozenset({1})


class TooManyWeights(Right):
    def attend(self, heads):
        found = super().attend(heads)
        return found if heads.need == "none" else replace(found, weights=self.scores(heads))


HERE = r"\(tests/contract/test_check\.py:\d+\)"
WRONG = [
    (OfKeyHeads, "outputs", rf"out of shape \(2, 2, 1, 8\) for q \(2, 4, 1, 8\).* see OfKeyHeads\.attend {HERE}"),
    (Bare, "outputs", "returns Tensor .* return Attended"),
    (InFloats, "outputs", r"gives float32 for q .* in bfloat16; return out\.to\(heads\.q\.dtype\)"),
    (
        Raises,
        "outputs",
        rf"Raises\.scores {HERE} raised RuntimeError: .*, with heads\.q \(2, 4, 1, 8\), heads\.k \(2, 2",
    ),
    (NoWindow, "outputs", rf"NoWindow\.window {HERE} raised AttributeError: .* has no attribute 'width'"),
    (TooManyWeights, "outputs", r"weights of shape \(2, 4, 7, 7\) for need='last_row', not \(2, 4, 1, 7\)"),
    (MixesRows, "rows", rf"row 0 of a batch of 3 differs .* dimension 0; see MixesRows\.attend {HERE}"),
    (PeeksAhead, "causality", "kernel eager, changing token 1 of 3 moves the output at position 0"),
    (RuleAndWindow, "causality", "kernel banded computes a decoder's windows only, without a rule"),
    (KnowsTheLength, "causality", "first 2 tokens change by .* compute nothing from its length"),
    (ForgetsTheWindow, "mask", r"window declares 4 keys, but the query at 4 sees the key at 0; see .* and Forgets"),
    (ShortSight, "mask", "every key is declared, but no query sees farther than 4 keys.*let mask be 0"),
    (ForgetsDocuments, "documents", "tokens in the first document move the outputs of the second"),
    (NoNumberForPadding, "padding", "with padding, outputs are not finite"),
    (ShortCache, "cache", rf"after \d+ cached tokens, the outputs of the next .* see ShortCache\.slot {HERE}"),
    (LargeCache, "cache", r"after 24 tokens the slot of own keeps \d+ numbers, and cached and sums declare 128"),
    (OtherScaleInTheCache, "cache", "after 1 cached tokens, the outputs of the next 23 differ"),
    (
        OtherPlacesInASteppedCache,
        "cache",
        "a step of compiled generation differs by .* from the full pass; mend the step",
    ),
    (CutOff, "gradients", r"blocks\.0\.attention\.q\.weight changes the outputs but gets no gradient"),
    (Cheap, "cost", r"torch counts [\d,]+ FLOPs .* bill [\d,]+; see Cheap\.keys"),
    (NotJson, "saving", "frozenset is not JSON serializable; see NotJson"),
]
ALSO = {KnowsTheLength: ("padding", "cache"), PeeksAhead: ("padding", "cache"), NoNumberForPadding: ("cache",)}
"""What else such a mistake spoils."""


def found_in(kind):
    """The checks that a kind fails, with what they say."""
    with fresh_plugins():
        register_kind(type(kind))
        return {one.check: one.text for one in findings(_around(kind)) if one.verdict == "failed"}


@pytest.mark.parametrize(("kind", "check", "says"), WRONG, ids=lambda value: getattr(value, "__name__", None))
def test_a_mistake_is_found_and_named(kind, check, says, monkeypatch):
    monkeypatch.chdir(__file__.rpartition("/tests/")[0])
    found = found_in(kind())
    assert check in found and re.search(says, found[check]), found
    assert all("\n" not in text for text in found.values())
    assert found.keys() <= {check, *ALSO.get(kind, ())}, found


def test_a_class_that_is_no_kind_yet_is_refused_when_it_is_registered():
    class NoLetter(AttentionKind):
        name = "none"

    class NoDataclass(AttentionKind):
        name, letter, colour = "none", "n", "#000000"
        width: int

    with pytest.raises(UserError, match="NoLetter: it has no letter; write for example name, letter, colour"):
        register_kind(NoLetter)
    with pytest.raises(UserError, match="width is no setting yet; write @dataclass.frozen=True. below @register_kind"):
        register_kind(NoDataclass)


def test_a_kind_without_mistakes_passes():
    assert found_in(Right()) == {}


def test_a_gradient_that_is_cut_off_from_what_does_not_matter_is_no_mistake():
    class Mean(Right):
        """The mean of all values so far: queries and keys have no effect, and so no gradient."""

        softmaxes = ()

        def scores(self, heads):
            return torch.zeros(*heads.q.shape[:3], heads.k.shape[2], dtype=heads.q.dtype)

        def slot(self, standard):
            raise UserError("cache: the mean has none")

        def keys(self, length, counting):
            return length / 2

    assert found_in(Mean()) == {}


KINDS = [Full(), Window(1), Window(5), Window(40), Mixed(4)]
KINDS += [Belief("high", 1.0), Belief("low", 0.5), Belief("elemmul"), Belief("high", 2.0, length_ref=6)]
KINDS += [Belief("high", send="all"), Belief("high", send="leaking"), Belief("low", detach_messages=True)]
KINDS += [Belief("high", own_message=True)]


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_built_in_kinds_pass(kind):
    found = list(findings(_around(kind)))
    assert not [one for one in found if one.verdict in ("failed", "not reached")]
    assert [one.check for one in found] == [check.__name__ for check in CHECKS]


@pytest.mark.parametrize("arch", some(preset_names("arch"), "bert", "spiral-b", rest=pytest.mark.full))
def test_built_in_architectures_pass(arch):
    (checked,) = check_named(arch)
    assert checked.passed, checked
    assert json.loads(json.dumps(checked.to_json()))["passed"]
