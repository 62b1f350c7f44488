"""Measures of fine-tuning tasks against values by hand and against scikit-learn and scipy."""

import math

import numpy as np
import pytest
from scipy import stats
from sklearn.metrics import f1_score, matthews_corrcoef

from hybridlab.data.finetune.corpus import Example
from hybridlab.evaluation.finetuned import bootstrapped, constant_guess, normalized, task_metrics, token_f1
from hybridlab.registry import FINETUNE_TASKS


def metrics(task, right, guessed, groups=None):
    groups = groups or [str(number) for number in range(len(right))]
    examples = [Example((("a",),), label, group) for label, group in zip(right, groups, strict=True)]
    return task_metrics(FINETUNE_TASKS.get(task), examples, guessed)


def test_accuracy_has_the_error_of_a_mean():
    found = metrics("sst2", [0, 1, 1, 0], [0, 1, 0, 0])["accuracy"]
    assert found.value == 0.75 and found.n == 4
    assert found.stderr == pytest.approx(np.std([1, 1, 0, 1], ddof=1) / 2)


def test_questions_on_one_passage_are_one_unit_of_the_error():
    right, guessed = [0] * 8, [0, 0, 0, 0, 1, 1, 1, 1]
    apart = metrics("race", right, guessed)["accuracy"]
    together = metrics("race", right, guessed, ["a"] * 4 + ["b"] * 4)["accuracy"]
    assert apart.value == together.value == 0.5 and together.stderr > 2 * apart.stderr


def test_matthews_by_hand_and_by_scikit_learn():
    # TP 3, TN 2, FP 1, FN 2: (3·2 − 1·2) / √(4·5·3·4)
    right, guessed = [1, 1, 1, 1, 1, 0, 0, 0], [1, 1, 1, 0, 0, 1, 0, 0]
    found = metrics("cola", right, guessed)
    assert found["matthews"].value == pytest.approx(4 / math.sqrt(240))
    assert found["matthews"].value == pytest.approx(matthews_corrcoef(right, guessed))
    assert list(found) == ["matthews", "accuracy"] and found["matthews"].n == 8


def test_f1_is_that_of_the_second_class():
    # Precision 3/4, recall 3/5.
    right, guessed = [1, 1, 1, 1, 1, 0, 0, 0], [1, 1, 1, 0, 0, 1, 0, 0]
    for task in ("mrpc", "qqp"):
        found = metrics(task, right, guessed)
        assert found["f1"].value == pytest.approx(2 / 3) == f1_score(right, guessed)
        assert found["accuracy"].value == 5 / 8


def test_correlations_by_scipy():
    rng = np.random.default_rng(3)
    right = rng.uniform(0, 5, 60)
    guessed = right + rng.normal(0, 1, 60)
    found = metrics("stsb", right.tolist(), guessed.tolist())
    assert found["pearson"].value == pytest.approx(stats.pearsonr(right, guessed).statistic)
    assert found["spearman"].value == pytest.approx(stats.spearmanr(right, guessed).statistic)
    # For a normal pair the error of r is close to (1 − r²) / √(n − 1).
    assert found["pearson"].stderr == pytest.approx((1 - found["pearson"].value ** 2) / math.sqrt(59), rel=0.4)


def test_the_bootstrap_of_a_mean_is_the_error_of_the_mean():
    rng = np.random.default_rng(1)
    values = rng.normal(size=400)
    found = bootstrapped(lambda right, guessed: float(right.mean()), values, values)
    assert found.stderr == pytest.approx(values.std(ddof=1) / 20, rel=0.15)
    assert found == bootstrapped(lambda right, guessed: float(right.mean()), values, values)


def test_a_correlation_with_a_constant_has_no_value():
    found = metrics("stsb", [1.0, 2.0, 3.0], [2.0, 2.0, 2.0])
    assert found["pearson"].value is None and found["pearson"].n == 3
    assert metrics("cola", [1, 0, 1], [1, 1, 1])["matthews"].value == 0


@pytest.mark.parametrize(
    "task, name, right, guessed, value",
    [
        ("cola", "matthews", [1, 0, 1, 0, 1], [1] * 5, 0),
        ("cola", "matthews", [1, 0] * 10, [1, 0] * 10, 1),
        ("mrpc", "f1", [1, 0, 1, 0], [0] * 4, 0),
        ("stsb", "pearson", [1.1, 2.3, 3.7, 4.2, 4.9], [2.2, 4.6, 7.4, 8.4, 9.8], 1),
    ],
)
def test_resamples_that_are_all_alike_give_no_error(task, name, right, guessed, value):
    found = metrics(task, right, guessed)
    assert found[name].value == pytest.approx(value) and found[name].stderr is None


@pytest.mark.parametrize(
    "answer, same",
    [
        ("The  Cat!", "cat"),
        ("a U.S. dollar", "us dollar"),
        ("An apple, the pear", "apple pear"),
        ("theatre", "theatre"),
        ("«Été»", "«été»"),
        ("...", ""),
        ("one\ttwo\n", "one two"),
    ],
)
def test_squads_normalisation(answer, same):
    assert normalized(answer) == same


def test_answers_are_compared_with_the_nearest_right_one():
    task = FINETUNE_TASKS.get("squad")
    answers = [(("honey", 0),), (("the red house", 4), ("house", 12)), (("1882", 3),)]
    examples = [Example((("q", "c"),), 0, str(i), right) for i, right in enumerate(answers)]
    found = task_metrics(task, examples, ["Honey.", "red house on fire", ""])
    # The second: 2 of 4 words right, 2 of 2 found: F1 2/3; the other answer gives 2/5.
    assert found["exact_match"].value == pytest.approx(1 / 3)
    assert found["f1"].value == pytest.approx((1 + 2 / 3 + 0) / 3)
    assert token_f1("a the", "an") == 1 and token_f1("a", "b") == 0


def test_a_constant_guess_is_the_commonest_of_training():
    def of(labels, **more):
        return [Example((("a",),), label, str(i), **more) for i, label in enumerate(labels)]

    assert constant_guess(FINETUNE_TASKS.get("mnli"), of([2, 1, 2])) == 2
    assert constant_guess(FINETUNE_TASKS.get("stsb"), of([1.0, 4.0])) == 2.5
    spans = of([0, 0], answers=(("two", 0),)) + of([0], answers=(("one", 0),))
    assert constant_guess(FINETUNE_TASKS.get("squad"), spans) == "two"
