"""Probes on prompts of tasks: interventions are those done by hand in transformers, and a unit has what its prompt has
alone."""

import json

import pytest
import torch
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from hybridlab.analysis.probe import run_probe
from hybridlab.analysis.prompts import TokenizerAlone
from hybridlab.data.primitives import items, prompt_with, solved_examples
from hybridlab.errors import UserError
from hybridlab.plan.attention_map import AttentionMap
from hybridlab.registry import PROBES
from hybridlab.runs.benchmarks import BenchmarkRequest, benchmark_model
from hybridlab.training.store.artifacts import open_model
from hybridlab.training.store.folders import Runs
from tests.lm_eval import saved_model

pytestmark = pytest.mark.usefixtures("no_data_root")
LAYERS = 6
ROWS = 3
TASKS = "arc_easy,piqa"


@pytest.fixture(scope="module")
def there(tmp_path_factory):
    """A model of Llama's layout with six layers, open here and in transformers, and the texts of its prompts."""
    folder = tmp_path_factory.mktemp("there")
    saved_model("llama", folder / "llama")
    torch.manual_seed(0)
    config = LlamaConfig.from_pretrained(folder / "llama", num_hidden_layers=LAYERS)
    LlamaForCausalLM(config).save_pretrained(folder / "llama")
    choices = {"text": ["cat", "mat", "rain", "hills"], "label": ["A", "B", "C", "D"]}
    asked = [{"question": f"What sat on {'a mat ' * n}?", "choices": choices, "answerKey": "B"} for n in range(2, 5)]
    piqa = [{"goal": f"sit on {'rain ' * n}", "sol1": "on a mat", "sol2": "on rain", "label": 0} for n in range(2, 5)]
    for path, rows in {"arc_easy/test.jsonl": asked, "piqa/validation.jsonl": piqa}.items():
        (folder / "root" / path).parent.mkdir(parents=True)
        (folder / "root" / path).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


@pytest.fixture(scope="module")
def opened(there):
    return open_model(str(there / "llama"), Runs(there / "runs"))


def probed(there, opened, name, **settings):
    asked = {"tasks": TASKS, "rows": ROWS, "data_root": str(there / "root"), "longest": 96, **settings}
    found = run_probe(name, opened.model, TokenizerAlone(opened.own_tokenizer()), 96, None, **asked)
    json.dumps(found, allow_nan=False)
    assert [*PROBES.get(name).report(found)], "what was measured can be shown"
    return found


def alone(there, opened, name, number, tmp_path, **settings):
    """The result for one prompt of each task, the only ones that there are."""
    for path in ("arc_easy/test.jsonl", "piqa/validation.jsonl"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text((there / "root" / path).read_text().splitlines(keepends=True)[number])
    return probed(there, opened, name, **{"rows": 1, "data_root": str(tmp_path), **settings})


def by_hand(there, change=lambda layers: layers):
    """The model of transformers with its list of layers changed."""
    model = AutoModelForCausalLM.from_pretrained(there / "llama").eval()
    model.model.layers = torch.nn.ModuleList(change([*model.model.layers]))
    for index, layer in enumerate(model.model.layers):
        layer.self_attn.layer_idx = index
    return model


def arc(there, n):
    tokenizer = Tokenizer.from_file(str(there / "llama" / "tokenizer.json"))
    return torch.tensor([tokenizer.encode(f"Question: What sat on {'a mat ' * n}?\nAnswer:").ids])


def loss_by_hand(model, ids):
    with torch.no_grad():
        return float(model(ids, labels=ids, use_cache=False).loss)


CHANGES = {
    ("skip", "1", 2): lambda layers: layers[:2] + layers[3:],
    ("swap", "1", 0): lambda layers: [layers[1], layers[0], *layers[2:]],
    ("swap", "2", 2): lambda layers: layers[:2] + layers[4:6] + layers[2:4],
    ("reverse", "4", 1): lambda layers: [layers[0], *layers[4:0:-1], layers[5]],
}


def test_interventions_are_those_done_by_hand(there, opened):
    found = probed(
        there, opened, "interventions", kinds="skip-1,swap-1,swap-2,reverse-4", starts="0,1,2", units=True, longest=96
    )
    assert found["swap"]["2"]["starts"] == [0, 1, 2] and found["reverse"]["4"]["starts"] == [0, 1, 2]
    prompts = [arc(there, n) for n in (2, 3, 4)]
    plain = [loss_by_hand(by_hand(there), ids) for ids in prompts]
    assert [unit["base"]["tasks"]["arc_easy"]["loss"][0] for unit in found["units"]] == pytest.approx(plain, abs=1e-5)
    for (kind, size, start), change in CHANGES.items():
        model = by_hand(there, change)
        losses = [loss_by_hand(model, ids) for ids in prompts]
        assert abs(losses[0] - plain[0]) > 1e-4, "the change is one"
        units = [unit[kind][size] for unit in found["units"]]
        at = units[0]["starts"].index(start)
        assert [unit["tasks"]["arc_easy"]["loss"][at] for unit in units] == pytest.approx(losses, abs=1.1e-5)
        assert found[kind][size]["tasks"]["arc_easy"]["loss"][at] == pytest.approx(sum(losses) / ROWS, abs=1.1e-5)
        means = [sum(task["loss"][at] for task in unit["tasks"].values()) / 2 for unit in units]
        assert [unit["loss"][at] for unit in units] == pytest.approx(means, abs=1.1e-5)
        assert found[kind][size]["loss"][at] == pytest.approx(sum(means) / ROWS, abs=1.1e-5)


def test_questions_are_asked_one_for_each_prompt(there, opened):
    found = probed(
        there, opened, "interventions", kinds="skip-1", starts="2", units=True, items=ROWS, questions="assignment-math"
    )
    asked, before = items("assignment-math", 1000, 0)[:ROWS], solved_examples("assignment-math", 5, 0)
    tokenizer, model = (
        Tokenizer.from_file(str(there / "llama" / "tokenizer.json")),
        by_hand(there, CHANGES["skip", "1", 2]),
    )
    for unit, item in zip(found["units"], asked, strict=True):
        prompt = tokenizer.encode(prompt_with(before, item), add_special_tokens=False).ids
        scores = []
        for option in item.options:
            ids = tokenizer.encode(f"{prompt_with(before, item)} {option}", add_special_tokens=False).ids
            with torch.no_grad():
                found_here = model(torch.tensor([ids]), use_cache=False).logits[0].log_softmax(-1)
            scores.append(sum(float(found_here[i - 1, ids[i]]) for i in range(len(prompt), len(ids))))
        own = unit["skip"]["1"]["choices"]["assignment-math"]
        loss = -torch.tensor(scores).log_softmax(0)[item.answer]
        assert own["loss"] == [pytest.approx(float(loss), abs=1e-4)]
        assert own["accuracy"] == [float(max(scores) == scores[item.answer])]
        assert unit["chance"]["choices"] == {"assignment-math": 1 / len(item.options)}


@pytest.mark.parametrize(
    ("probe", "settings"),
    [
        ("interventions", {"kinds": "swap-2,reverse-4", "starts": "0,2"}),
        ("effects", {"modes": "current", "axes": "propagated", "parts": "layer"}),
        ("effects", {"modes": "future", "axes": "propagated", "parts": "layer,attention", "at": "8"}),
        ("depth-score", {"at": "8"}),
        ("dependency", {"graphs": ROWS, "nodes": 12}),
    ],
)
def test_a_unit_has_what_its_prompt_has_alone(there, opened, probe, settings, tmp_path):
    whole = probed(there, opened, probe, units=True, **settings)
    assert len(whole["units"]) == ROWS
    for number in (0, 2):
        one = alone(there, opened, probe, number, tmp_path, units=True, **settings)
        # Of graphs single ones are listed of the first unit alone.
        alone_here = one["units"][0]
        if number and probe == "dependency":
            listed = {"mean", "correlation"}
            alone_here["graphs"] = {key: value for key, value in alone_here["graphs"].items() if key in listed}
        close(whole["units"][number], alone_here)
    assert whole["units"][0] != whole["units"][2]


def close(one, other):
    """Equal but for the last bits of the products of matrices of other sizes."""
    assert type(one) is type(other)
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for name in one:
            close(one[name], other[name])
    elif isinstance(one, list):
        assert len(one) == len(other)
        for ours, theirs in zip(one, other, strict=True):
            close(ours, theirs)
    else:
        assert one == (pytest.approx(other, rel=1e-4, abs=2e-5) if isinstance(one, float) else other)


def test_the_mean_over_units_is_that_over_all_prompts(there, opened):
    effects = probed(there, opened, "effects", modes="current", axes="propagated", parts="layer", units=True)
    part = [unit["current"]["propagated"]["layer"]["output"] for unit in effects["units"]]
    assert torch.tensor(part).mean(0).tolist() == pytest.approx(
        effects["current"]["propagated"]["layer"]["output"], rel=1e-3
    )
    score = probed(there, opened, "depth-score", boundaries=1, units=True)
    assert list(score["levels"]) == list(score["units"][0]["levels"]) == ["arc_easy", "piqa"]
    for name, level in score["levels"].items():
        means = torch.tensor([unit["levels"][name]["effects"] for unit in score["units"]]).mean(0)
        assert means.tolist() == pytest.approx(level["effects"], rel=1e-3)
    dependency = probed(there, opened, "dependency", units=True)
    assert dependency["graphs"] is None and dependency["units"][0]["graphs"] is None
    for name in ("gtd", "entropy", "indirect_entropy", "sparsity"):
        means = torch.tensor([unit["layers"][name] for unit in dependency["units"]]).mean(0)
        assert means.tolist() == pytest.approx(dependency["layers"][name], abs=2e-5)
    tasks = [task["layers"]["gtd"][1] for task in dependency["tasks"].values()]
    assert sum(tasks) / 2 == pytest.approx(dependency["layers"]["gtd"][1], abs=2e-5)


def test_an_effect_is_that_of_a_layer_that_adds_nothing(there, opened):
    """By hand: the layer gives back what it reads, at all tokens but the first."""
    found = probed(there, opened, "effects", modes="current", axes="propagated", parts="layer", layers="3", units=True)
    model, ids = by_hand(there), arc(there, 2)

    def nothing(layer, arguments, output):
        x = output[0] if isinstance(output, tuple) else output
        kept = torch.cat([x[:, :1], arguments[0][:, 1:]], 1)
        return (kept, *output[1:]) if isinstance(output, tuple) else kept

    with torch.no_grad():
        clean = model(ids, use_cache=False).logits.softmax(-1)
        model.model.layers[3].register_forward_hook(nothing)
        skipped = model(ids, use_cache=False).logits.softmax(-1)
    wanted = float((skipped - clean).norm(dim=-1).max())
    one = probed(
        there,
        opened,
        "effects",
        tasks="arc_easy",
        modes="current",
        axes="propagated",
        parts="layer",
        layers="3",
        units=True,
    )
    assert one["units"][0]["current"]["propagated"]["layer"]["output"] == [pytest.approx(wanted, abs=1e-5)]
    assert len(found["units"]) == ROWS


@pytest.mark.parametrize(
    ("probe", "settings", "says"),
    [
        ("interventions", {"kinds": "skip-1", "units": True, "questions": "assignment-math"}, "give items = 3"),
        ("interventions", {"kinds": "skip-9"}, "'skip-9' does not fit into the 6 layers"),
        ("interventions", {"kinds": "skip-x"}, "kinds = 'skip-x' is unknown"),
        ("interventions", {"kinds": "skip-²"}, "kinds = 'skip-²' is unknown"),
        ("knockout", {"longest": 1, "window": 4}, "one of its prompts is a single token, which has no loss"),
        ("interventions", {"kinds": "truncate-2"}, "kinds = 'truncate-2' is unknown"),
        ("interventions", {"kinds": "skip-1", "sizes": "2"}, "sizes has no effect"),
        ("interventions", {"kinds": "skip-1", "starts": "9"}, "starts = 9: no intervention"),
        ("interventions", {"kinds": "skip-1,swap-2", "starts": "5"}, "swap-2 begins at none of them"),
        ("interventions", {"kinds": "skip-1", "questions": "sums"}, "questions"),
        ("effects", {"prompts": "there.jsonl"}, "--prompts and --tasks both name the prompts"),
        ("depth-score", {"at": "60", "units": True}, "leave no future to measure"),
        ("depth-score", {"tasks": "", "units": True}, "units are prompts, one of every task"),
        ("dependency", {"tasks": ""}, "it needs the run's configuration"),
    ],
)
def test_mistakes_are_one_sentence(there, opened, probe, settings, says):
    if "tasks" in settings:
        settings = {"data_root": None, "longest": None, **settings}
    with pytest.raises(UserError, match=says):
        probed(there, opened, probe, **settings)


def test_answers_are_those_of_lm_eval_question_by_question(there, opened):
    """Its accuracy is lm-eval's `acc`, and a unit has what transformers gives for its question alone."""
    found = probed(there, opened, "answers", units=True)
    asked = BenchmarkRequest(("arc_easy", "piqa"), limit=ROWS, data_root=there / "root")
    theirs = benchmark_model(opened.model, opened.own_tokenizer(), opened, 96, asked).results
    for task, options in (("arc_easy", 4), ("piqa", 2)):
        assert found["tasks"][task]["accuracy"] == pytest.approx(theirs[task].metrics["acc"].value, abs=1e-5)
        assert found["tasks"][task]["chance"] == 1 / options and found["tasks"][task]["sequences"] == ROWS
        for what in ("accuracy", "loss"):
            mean = sum(unit["tasks"][task][what] for unit in found["units"]) / ROWS
            assert found["tasks"][task][what] == pytest.approx(mean, abs=1.1e-5)
    model, tokenizer = by_hand(there), Tokenizer.from_file(str(there / "llama" / "tokenizer.json"))
    for unit, n in zip(found["units"], (2, 3, 4), strict=True):
        prompt, scores = f"Question: What sat on {'a mat ' * n}?\nAnswer:", []
        for word in ("cat", "mat", "rain", "hills"):
            ids, start = tokenizer.encode(f"{prompt} {word}").ids, len(tokenizer.encode(prompt).ids)
            with torch.no_grad():
                logits = model(torch.tensor([ids]), use_cache=False).logits[0].log_softmax(-1)
            scores.append(sum(float(logits[i - 1, ids[i]]) for i in range(start, len(ids))))
        loss = -torch.tensor(scores).log_softmax(0)[1]
        assert unit["tasks"]["arc_easy"]["loss"] == pytest.approx(float(loss), abs=1.1e-5)


def test_answers_need_tasks_with_options(there, opened):
    with pytest.raises(UserError, match="name some with --tasks"):
        run_probe("answers", opened.model, TokenizerAlone(opened.own_tokenizer()), 96)
    with pytest.raises(UserError, match="questions with options after one prompt"):
        probed(there, opened, "answers", tasks="needle_multikey_short")


def test_a_knock_out_on_prompts_is_the_difference_of_their_losses(there, opened):
    found = probed(there, opened, "knockout", window=3)
    plain = probed(there, opened, "loss")["loss"]
    assert found["window"] == 3 and found["sequences"] == 2 * ROWS and list(found["heads"]) == ["text"]
    assert found["base"]["text"]["all"]["value"] == pytest.approx(plain, abs=1.1e-5)
    shape = opened.model.shape
    masks = [[0 if (layer, head) == (1, 1) else 1 for head in range(shape.kv_heads)] for layer in range(shape.layers)]
    changed = opened.model.with_plan(attention_map=AttentionMap.from_masks(masks, 3))
    asked = {"tasks": TASKS, "rows": ROWS, "data_root": str(there / "root"), "longest": 96}
    loss = run_probe("loss", changed, TokenizerAlone(opened.own_tokenizer()), 96, None, **asked)["loss"]
    assert found["heads"]["text"]["all"]["rise"][1][1] == pytest.approx(loss - plain, abs=2.1e-5)
