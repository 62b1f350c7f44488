"""A model gives lm-eval the scores that lm-eval's own class for transformers gives it, on every kind of request."""

from types import SimpleNamespace

import pytest
import torch
from lm_eval.evaluator import evaluate
from lm_eval.tasks import TaskManager
from tokenizers import Tokenizer

from hybridlab import UserError, build_model, load_hf
from hybridlab.evaluation.lm_eval_model import HarnessModel, longest_row, special_tokens_of
from hybridlab.messages import heard_by
from tests.lm_eval import MODELS, saved_model, tasks

MANAGER = TaskManager(include_defaults=False)
FOLDERS = [*((family, False) for family in MODELS), ("llama", True)]
"""Family, and whether its tokenizer puts <s> before every text."""


@pytest.fixture(scope="module", params=FOLDERS, ids=str)
def folder(request, tmp_path_factory):
    family, begins = request.param
    return saved_model(family, tmp_path_factory.mktemp(family), begins)


def ours(folder, batch_size, model=None, **changes):
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    length = changes.pop("max_length", longest_row(folder))
    special = special_tokens_of(folder, tokenizer)
    return HarnessModel(model or load_hf(folder), tokenizer, special, length, batch_size)


def theirs_of(folder, batch_size):
    """lm-eval's class for transformers, which needs the package accelerate."""
    pytest.importorskip("accelerate")
    from lm_eval.models.huggingface import HFLM

    return HFLM(pretrained=str(folder), device="cpu", batch_size=batch_size, dtype="float32")


def answered(harness, asked=None):
    loaded = MANAGER.load(asked or tasks())
    for task in loaded["tasks"].values():
        task.set_fewshot_seed(seed=1234)
    found = evaluate(lm=harness, task_dict=loaded, bootstrap_iters=0)
    samples = {
        task: [(sample["arguments"], sample["resps"]) for sample in rows] for task, rows in found["samples"].items()
    }
    return found["results"], samples


@pytest.mark.parametrize("batch_size", [1, 7])
def test_scores_are_those_of_lm_evals_class_for_transformers(folder, batch_size):
    theirs, their_samples = answered(theirs_of(folder, batch_size))
    found, samples = answered(ours(folder, batch_size))
    assert samples.keys() == their_samples.keys()
    for task, rows in samples.items():
        for (asked, answers), (their_asked, their_answers) in zip(rows, their_samples[task], strict=True):
            assert asked == their_asked
            for (answer,), (their_answer,) in zip(answers, their_answers, strict=True):
                assert _same(answer, their_answer)
    for name in ("acc,none", "acc_norm,none"):
        assert found["mine_choice"][name] == theirs["mine_choice"][name]
    assert found["mine_generated"]["exact_match,none"] == theirs["mine_generated"]["exact_match,none"]
    assert found["mine_last_word"]["perplexity,none"] == pytest.approx(
        theirs["mine_last_word"]["perplexity,none"], rel=1e-5
    )
    assert found["mine_texts"]["bits_per_byte,none"] == pytest.approx(
        theirs["mine_texts"]["bits_per_byte,none"], rel=1e-6
    )


def _same(answer, other):
    if isinstance(answer, str):
        return answer == other
    if isinstance(answer, tuple):
        return answer[1] == other[1] and answer[0] == pytest.approx(other[0], abs=2e-4)
    return answer == pytest.approx(other, abs=1e-3)


@pytest.mark.parametrize("batch_size", [1, 7])
def test_with_the_same_logits_log_likelihoods_are_the_same_to_the_last_bit(folder, batch_size):
    """So only the last bits of a forward pass can differ between both: not tokens, batches or sums."""
    reference = theirs_of(folder, batch_size)
    model = load_hf(folder)
    seen = []

    def their_logits(tokens, at, **_):
        seen.append(tuple(tokens.shape))
        return SimpleNamespace(logits=reference.model(tokens).logits.take_along_dim(at[..., None], 1))

    model.forward = their_logits
    asked = [task for task in tasks() if task["output_type"] != "generate_until"]
    assert answered(reference, asked)[1] == answered(ours(folder, batch_size, model), asked)[1]
    assert max(rows for rows, _ in seen) == batch_size


def test_a_generated_text_ends_at_an_end_token(tmp_path):
    folder = saved_model("llama", tmp_path)
    harness = ours(folder, 2)
    end = harness.special.end
    calls = []

    def next_tokens(tokens, attention_mask=None, cache=None, at=None):
        calls.append(tokens.shape)
        logits = torch.zeros(*at.shape, 320)
        logits[..., 40 + len(calls) if len(calls) < 4 else end] = 1.0
        return type("Output", (), {"logits": logits})

    harness.model.forward = next_tokens
    (text,) = harness._continued(["the cat"], {"until": ["\n\n"], "max_gen_toks": 50}, [0])
    assert len(calls) == 4 and text == harness.tokens.decode([41, 42, 43])


def test_mistakes_end_in_one_sentence(tmp_path):
    folder = saved_model("gpt2", tmp_path)
    harness = ours(folder, 2, max_length=30)
    with pytest.raises(UserError, match="asks for 40 new tokens, and the model has 30 positions"):
        harness._continued(["the cat"], {"max_gen_toks": 40}, [0])
    with pytest.raises(UserError, match="num_beams=3"):
        harness._continued(["the cat"], {"max_gen_toks": 4, "num_beams": 3}, [0])
    with pytest.raises(UserError, match="a text to be scored has 31 tokens"):
        harness._loglikelihood_tokens([(None, [5], list(range(3, 34)))])
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    with pytest.raises(UserError, match="an encoder sees the tokens on both sides"):
        HarnessModel(build_model("bert", size="bert-mini"), tokenizer, harness.special, 32)


def test_rotary_positions_go_on_where_a_row_must_be_longer(tmp_path):
    """lm-eval's own class stops there; a long text is scored as with a larger `max_length`."""
    folder = saved_model("llama", tmp_path)
    said = []
    short, long = ours(folder, 2, max_length=30), ours(folder, 2, max_length=31)
    asked = [(None, [5], list(range(3, 34))), (None, [5, 6], [7, 8])]
    with heard_by(said.append):
        scored = short._loglikelihood_tokens(asked)
        continued = short._continued(["the cat"], {"max_gen_toks": 40}, [0])
    assert scored == long._loglikelihood_tokens(asked)
    assert continued == ours(folder, 1)._continued(["the cat"], {"max_gen_toks": 40}, [0])
    assert said == [
        "a text to be scored has 31 tokens, more than the 30 that the model is made for: they are taken all the same"
    ]


def test_sampled_texts_of_a_task_are_its_own_in_any_batch(tmp_path):
    """A task asks a question several times where it takes the commonest of the answers."""
    folder = saved_model("neox", tmp_path)
    settings = {"max_gen_toks": 12, "do_sample": True, "temperature": 0.9, "top_k": 20}
    asked = [SimpleNamespace(args=(text, settings)) for text in ("the cat", "rain fell") for _ in range(4)]
    first = ours(folder, 3).generate_until(asked)
    assert first == ours(folder, 8).generate_until(asked) and len(set(first)) == len(first)
    greedy = [SimpleNamespace(args=(one.args[0], {"max_gen_toks": 12})) for one in asked]
    assert first != ours(folder, 3).generate_until(greedy)
