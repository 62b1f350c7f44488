"""`hybridlab eval`: measure a trained model, on its own data or on other text."""

from __future__ import annotations

from hybridlab.cli import options as o


def evaluate(
    run: o.ModelReference,
    data: o.OtherText = None,
    choices: o.Choices = None,
    sets: o.Sets = None,
    runs_dir: o.RunsDir = o.RUNS,
    as_json: o.AsJson = False,
) -> None:
    """Measure loss, perplexity and tasks of a trained model, after a test of causality; or, of a fine-tuned model, its
    task, with --data PATH on another file of it. The record does not change."""
    from hybridlab.cli.training import print_results
    from hybridlab.runs.evaluate import evaluate_run
    from hybridlab.training.folders import Runs

    settings = [*o.choices_settings(choices), *(sets or [])]
    results = evaluate_run(run, Runs(runs_dir), data, settings, o.say)
    if as_json:
        o.print_json(results.model_dump(mode="json"))
        return
    print_results(results, f"{run} on {' + '.join(data) if data else 'its own validation data'}")
