"""`hybridlab finetune`: train a trained model on a task with labels, or on chats."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hybridlab.cli import completion
from hybridlab.cli import options as o

Task = Annotated[
    str,
    typer.Option(
        "--task",
        help="sst2, cola, mrpc, rte, qnli, qqp, mnli, stsb, wnli, squad, race, race-middle, hellaswag, boolq; or sft: "
        "answers in chats, or to prompts.",
        autocompletion=completion.finetune_tasks,
    ),
]
Examples = Annotated[
    Path | None,
    typer.Option(
        "--data",
        metavar="PATH",
        help="Training examples: .tsv, .csv, .jsonl, .json (SQuAD) or .parquet, or a folder with train.* and "
        "validation.* or dev.*; default: the task's dataset of the Hugging Face hub.",
    ),
]
Validation = Annotated[
    Path | None,
    typer.Option(
        "--validation",
        metavar="PATH",
        help="Examples to measure with. Without it, and without such a file in the folder, a tenth of the training "
        "examples is held out (finetune.validation_fraction), also of a file that is only a dev split.",
    ),
]
Epochs = Annotated[
    float | None, typer.Option("--epochs", help="Passes over the training examples; default: as the task's preset.")
]
Steps = Annotated[int | None, typer.Option("--steps", min=1, help="Optimizer steps, instead of --epochs.")]
Rate = Annotated[float | None, typer.Option("--lr", help="Peak learning rate; default: as the task's preset.")]
Rank = Annotated[
    int | None,
    typer.Option(
        "--lora-rank",
        min=1,
        help="Train only adapters of this rank (LoRA) and a new head; they are merged into the weights at the end. "
        "finetune.lora has more.",
    ),
]


@o.on_ranks
def finetune(
    run: o.ModelReference,
    task: Task,
    data: Examples = None,
    validation: Validation = None,
    epochs: Epochs = None,
    steps: Steps = None,
    lr: Rate = None,
    lora_rank: Rank = None,
    seed: o.Seed = None,
    *,
    asked: o.OneRun,
) -> None:
    """Train a trained model on a task with labels, with a new output head, or on the answers in chats; with its
    weights, plan and attention map.

    The same command resumes an unfinished run, and does nothing for a finished one.
    """
    from hybridlab.cli.training import runtime_layer, train_and_print
    from hybridlab.config.loading import merge
    from hybridlab.runs.compose import Request, compose, task_layer
    from hybridlab.store.folders import Runs

    runs = Runs(asked.runs_dir)
    runtime, settings = runtime_layer(asked.track, asked.compile), asked.sets or []
    layer = merge(runtime, task_layer(task, data, validation, epochs, steps, lr, seed, lora_rank))
    request = Request(start=run, config=asked.config, options=layer, settings=settings, keep_map=True, task=task)
    train_and_print(compose(request, runs), runs, "finetune", asked)
