"""Loops of whole blocks: the layers are chosen by the entropies of another run."""

import pytest
import torch

from hybridlab.config.resolve import run_hash
from hybridlab.errors import UserError
from hybridlab.plan.plan import Plan
from tests.training import FIVE_LAYERS, train


def test_block_loop_takes_the_most_entropic_layers_of_a_vanilla_run(small, runs):
    vanilla = small("vanilla", **FIVE_LAYERS, observe={"entropy_every": 4})
    record = train(vanilla, runs / "vanilla", runs)
    logged = record.hooks["entropy-log"]
    assert logged["steps"] == [1, 4, 8, 12] and len(logged["entropies"][0]) == 5
    means = torch.tensor(logged["entropies"][1]).mean(1)
    wanted = sorted((means[1:].argsort(descending=True)[:2] + 1).tolist())
    choice = {"top_entropy_of": run_hash(vanilla), "step": 4, "n": 2}
    config = small("block-loop", **FIVE_LAYERS, plan=[{"op": "loop_blocks", "layers": choice}])
    looped = train(config, runs / "looped", runs)
    twice = Plan.plain(5).loop_blocks(wanted)
    assert looped.model.plan == str(twice) and looped.parents == [run_hash(vanilla)]
    other = small("block-loop", **FIVE_LAYERS, plan=[{"op": "loop_blocks", "layers": {**choice, "step": 5}}])
    with pytest.raises(UserError, match=r"no entropies of step 5 \(it has 1, 4, 8, 12\).*observe.entropy_every=5"):
        train(other, runs / "other", runs)
    assert not (runs / "other").exists()


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ({"last": 9}, "last 9 is not between 1 and 5"),
        ({"top_entropy_of": "abc", "n": 0}, "greater than or equal to 1"),
        ({"first": 2}, "layers.first is not a known setting"),
        ([7], "layer 7 does not exist"),
    ],
)
def test_invalid_choices_of_layers_are_refused(small, tmp_path, runs_dir, choice, message):
    with pytest.raises(UserError, match=message):
        train(
            small("block-loop", **FIVE_LAYERS, plan=[{"op": "loop_blocks", "layers": choice}]), tmp_path / "a", runs_dir
        )
