"""Arguments of the Python API: numpy's numbers, paths and tuples are taken, and wrong types are one sentence."""

from pathlib import Path

import numpy as np
import pytest
import torch

import hybridlab
from hybridlab.arguments import checked, plain
from hybridlab.config.resolve import resolve_parts
from hybridlab.runs.train import as_texts, nested

MODEL = hybridlab.build_model("vanilla", shape={"layers": np.int64(2), "width": 16, "heads": 2, "kv_heads": 1})
VISIT = hybridlab.Visit(1)


def test_what_numpy_and_torch_give_is_plain():
    given = {
        "a": np.float64(0.5),
        "b": (np.int64(3), Path("x/y")),
        "c": np.arange(3),
        "d": torch.tensor(2),
        4: range(2),
    }
    found = plain(given)
    assert found == {"a": 0.5, "b": [3, "x/y"], "c": [0, 1, 2], "d": 2, 4: [0, 1]}
    assert [type(found["a"]), type(found["b"][0])] == [float, int]
    assert as_texts(nested({"training.optimizer.lr": np.float64(0.5), "x": {"y": (np.int64(1),)}})) == [
        "training.optimizer.lr=0.5",
        "x.y=[1]",
    ]


def test_dotted_and_nested_settings_of_one_section_are_merged():
    given = {"training.optimizer.lr": 0.5, "training": {"seed": 3, "optimizer": {"name": "adamw"}}, "training.steps": 2}
    merged = {"training": {"optimizer": {"lr": 0.5, "name": "adamw"}, "seed": 3, "steps": 2}}
    assert nested(given) == nested(dict(reversed(given.items()))) == merged
    assert given["training"] == {"seed": 3, "optimizer": {"name": "adamw"}}  # what the caller has stays as it is


def test_tensors_by_visit_stay_tensors():
    """A place is a tuple, which as a list could be no key."""
    gates = {1: torch.tensor([0.0])}
    model = hybridlab.build_model("consa", shape={"layers": 2, "width": 16, "heads": 2, "kv_heads": 1}, window=4)
    factors = {place: torch.zeros(2) for place, _ in model.plan.places()}
    changed = model.with_plan(factors=factors, gates=gates)
    assert changed.factors.keys() == factors.keys()
    assert all(isinstance(tensor, torch.Tensor) for tensor in (*changed.factors.values(), *changed.gates.values()))


def test_one_text_is_a_list_of_one():
    @checked
    def listed(names: "hybridlab.arguments.Sequence[str]" = ()):
        return names

    assert listed("abc") == listed(["abc"]) == listed(("abc",)) == listed(np.array(["abc"])) == ["abc"]


@pytest.mark.parametrize(
    ("call", "same"),
    [
        (lambda: hybridlab.flops("vanilla", np.int64(8)), lambda: hybridlab.flops("vanilla", 8)),
        (
            lambda: hybridlab.Plan.plain(np.int64(4)).loop_heads(layer=np.int64(1), heads=np.array([0, 1])).to_json(),
            lambda: hybridlab.Plan.plain(4).loop_heads(layer=1, heads=(0, 1)).to_json(),
        ),
        (
            lambda: hybridlab.Loop(((VISIT,),), chunks=np.array([4, 2])).to_json(),
            lambda: hybridlab.Loop(((VISIT,),), chunks=(4, 2)).to_json(),
        ),
        (
            lambda: hybridlab.AttentionMap.rule(4, 2, "head", np.float64(0.5), window=np.int64(8)).to_json(),
            lambda: hybridlab.AttentionMap.rule(4, 2, "head", 0.5, window=8).to_json(),
        ),
        (
            lambda: hybridlab.build_model("rule-swa", window=np.int64(8)).attention_map,
            lambda: hybridlab.build_model("rule-swa", window=8).attention_map,
        ),
        (lambda: resolve_parts("vanilla", "tiny", {}, "x"), lambda: resolve_parts("vanilla", "tiny", {}, "x")),
    ],
)
def test_numbers_of_numpy_are_numbers(call, same):
    assert call() == same()


WRONG = [
    (lambda: hybridlab.train(3), "train: arch= is 3 (int); it must be text"),
    (lambda: hybridlab.train(tags=[3]), "train: tags= is [3] (list), where 3 is not text; it must be a list of texts"),
    (lambda: hybridlab.train(steps=2.5), "train: steps= is 2.5 (float); it must be a whole number"),
    (lambda: hybridlab.train(steps=True), "train: steps= is True (bool); it must be a whole number"),
    (lambda: hybridlab.train(seed="1"), "train: seed= is '1' (str); it must be a whole number"),
    (lambda: hybridlab.train(settings="a=1"), "train: settings= is 'a=1' (str); it must be a dict"),
    (lambda: hybridlab.train(hooks=hybridlab.Hook), "it must be a list of Hook objects"),
    (lambda: hybridlab.train(data=3), "train: data= is 3 (int); it must be text or a list of texts"),
    (lambda: hybridlab.train(name=3), "train: name= is 3 (int)"),
    (lambda: hybridlab.train(quiet="no"), "it must be True or False"),
    (lambda: hybridlab.train(run_dir=3), "train: run_dir= is 3 (int); it must be text or a path"),
    (lambda: hybridlab.train(start=MODEL), "a TrainedRun; write the model into a folder with hybridlab.save("),
    (lambda: hybridlab.finetune(MODEL, "sst2"), "finetune: run= is Decoder; it must be text or a path or a Trained"),
    (lambda: hybridlab.finetune("x", ["sst2"]), "finetune: task= is ['sst2'] (list); it must be text"),
    (lambda: hybridlab.finetune("x", "sst2", lr="big"), "finetune: lr= is 'big' (str); it must be a number"),
    (lambda: hybridlab.evaluate(3), "evaluate: run_or_model= is 3 (int)"),
    (lambda: hybridlab.evaluate("x", tasks=3), "evaluate: tasks= is 3 (int); it must be a list of texts"),
    (lambda: hybridlab.evaluate("x", batch_size="all"), "it must be a whole number or 'auto'"),
    (lambda: hybridlab.compare("vanilla"), "compare: give a baseline and an arm beside it"),
    (lambda: hybridlab.compare(["vanilla", "sgt"], metrics="lss"), "there is no metric 'lss'; did you mean 'loss'"),
    (lambda: hybridlab.compare(["vanilla", "sgt"], seeds="3"), "seeds= is '3' (str); it must be a whole number"),
    (lambda: hybridlab.compare(3), "compare: arms= is 3 (int); it must be a list of texts"),
    (lambda: hybridlab.export_hf(3, "x"), "or a model"),
    (lambda: hybridlab.build_model(["vanilla"]), "build_model: arch= is ['vanilla'] (list); it must be text"),
    (lambda: hybridlab.build_model("vanilla", seed=0.5), "build_model: seed= is 0.5 (float)"),
    (lambda: hybridlab.flops(3, 8), "flops: model_or_arch= is 3 (int); it must be a model, or the name of an arch"),
    (lambda: hybridlab.flops("vanilla", "8"), "flops: seq_len= is '8' (str); it must be a whole number"),
    (lambda: hybridlab.save("m", "x"), "save: model= is 'm' (str); it must be a model"),
    (lambda: hybridlab.save(MODEL, 3), "save: folder= is 3 (int); it must be text or a path"),
    (lambda: hybridlab.load_checkpoint(3), "load_checkpoint: path= is 3 (int)"),
    (lambda: hybridlab.load_hf(3), "load_hf: path_or_id= is 3 (int)"),
    (lambda: hybridlab.load_plugin(3), "load_plugin: reference= is 3 (int); it must be text or a path"),
    (lambda: hybridlab.register_hook(3), "register_hook: kind= is 3 (int); it must be text"),
    (lambda: hybridlab.register_controller("x", settings=3), "it must be a subclass of BaseModel"),
    (lambda: hybridlab.Plan.plain("x"), "plain: num_layers= is 'x' (str); it must be a whole number"),
    (lambda: hybridlab.Plan((3,), 4), "plan: visits (3,) (tuple) must be a tuple of Visit and Loop objects"),
    (lambda: hybridlab.Plan.plain(4).skip("x"), "skip: layers= is ('x',) (tuple)"),
    (lambda: hybridlab.Visit("a"), "visit of layer a: layers are whole numbers"),
    (lambda: hybridlab.Visit(1, heads=3), "heads 3 must be different numbers"),
    (lambda: hybridlab.Loop(bodies=VISIT, chunks=(4,)), "a body is a sequence of visits"),
    (lambda: hybridlab.AttentionMap.rule("a", 4, "head", 0.5, window=3), "rule: num_layers= is 'a' (str)"),
    (lambda: hybridlab.AttentionMap.uniform(2, 2, "full"), "it must be an AttentionKind"),
    (lambda: MODEL.generate([[1, 2]], max_new_tokens=2), "input_ids= is [[1, 2]] (list); it must be a Tensor"),
    (lambda: MODEL.generate(torch.zeros(1, 2), max_new_tokens=2), "generate: input_ids are fractions"),
    (lambda: MODEL.with_plan("x"), "with_plan: plan= is 'x' (str); it must be a Plan"),
]
"""Every public function with values of wrong types."""


@pytest.mark.parametrize(("call", "message"), WRONG)
def test_a_wrong_type_is_one_sentence(call, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(hybridlab.UserError) as told:
        call()
    assert message in str(told.value)
    assert not list(tmp_path.iterdir())


def test_every_public_function_is_in_the_table():
    named = {name for call, _ in WRONG for name in call.__code__.co_names}
    functions = {name for name in hybridlab.__all__ if type(getattr(hybridlab, name)).__name__ == "function"}
    assert functions <= named
