"""`hybridlab pretrain`, `learn-masks`, `grow` and `finetune`: train one run, or resume it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from hybridlab.cli import completion
from hybridlab.cli import options as o
from hybridlab.errors import UserError
from hybridlab.messages import say

_WITH_EXTEND = ["start", "extend", *(option.name for option in o.flat("common", o.OneRun) if option.name != "config")]
_UntilSettled = Annotated[
    bool,
    typer.Option(
        "--until-settled",
        help="Go on by itself until the masks have settled, as far as 4 times --steps: every extension is a run of "
        "its own, and the last one gets the --name.",
    ),
]


@o.on_ranks
def pretrain(
    context: typer.Context,
    arch: o.Arch = None,
    size: o.Size = None,
    data: o.DataSource = None,
    steps: o.Steps = None,
    seed: o.Seed = None,
    start: Annotated[
        str | None,
        typer.Option(
            "--from",
            help="Start from the weights of a run (name, folder or hash), RUN/best, a Hugging Face folder or a GGUF "
            "file.",
            autocompletion=completion.runs,
        ),
    ] = None,
    extend: Annotated[
        int | None, typer.Option(min=1, help="Train the run of --from so many steps longer, with its optimizer.")
    ] = None,
    masks: o.Masks = None,
    entropy_of: o.EntropyOf = None,
    nearest: o.Nearest = False,
    *,
    common: o.OneRun,
) -> None:
    """Train a model. The same command resumes an unfinished run, and does nothing for a finished one."""
    from hybridlab.cli.training import (
        composed,
        masks_file,
        require_extendable,
        runtime_layer,
        settings_layer,
        train_and_print,
    )
    from hybridlab.runs.compose import chosen_arch
    from hybridlab.runs.extension import extension
    from hybridlab.training.store.folders import Runs

    runs = Runs(common.runs_dir)
    if extend is not None:
        require_extendable(context, start, _WITH_EXTEND)
        runtime = runtime_layer(common.track, common.compile)
        config = extension(start or "", extend, runs, runtime, common.sets or [])
    else:
        options = settings_layer(chosen_arch(arch, common.config), steps, seed, nearest, masks_file(masks, runs))
        config = composed(common, runs, options, arch=arch, size=size, data=data, start=start, entropy_of=entropy_of)
    train_and_print(config, runs, "pretrain", common)


@o.on_ranks
def learn_masks(
    start: Annotated[
        str,
        typer.Option(
            "--from",
            help="The model to start from: a run (name, folder or hash), a Hugging Face folder or a GGUF file.",
            autocompletion=completion.runs,
        ),
    ],
    arch: Annotated[
        str | None,
        typer.Option(
            help="consa, or l1-gates (its ablation without the Lagrangian); default: that of --config, or consa.",
            autocompletion=completion.mask_learners,
        ),
    ] = None,
    rho: Annotated[
        float | None,
        typer.Option(
            help="Target sparsity: the share of units that get a window; default: that of --config or --arch, or 0.5."
        ),
    ] = None,
    granularity: Annotated[
        str | None,
        typer.Option(
            help="layer, head-all or head-single; default: that of --config or --arch: consa head-all, l1-gates layer."
        ),
    ] = None,
    window: Annotated[int | None, typer.Option(help="Window w, the query included; default: that of the size.")] = None,
    binarize: Annotated[
        str | None, typer.Option(help="consa: topk (default, meets rho exactly) or threshold (as in the paper).")
    ] = None,
    until_settled: _UntilSettled = False,
    nearest: o.Nearest = False,
    data: o.DataSource = None,
    steps: o.Steps = None,
    seed: o.Seed = None,
    *,
    common: o.OneRun,
) -> None:
    """Learn masks from a trained model, and write masks.json in the run folder, for `pretrain --arch consa --masks`.

    The same command resumes an unfinished run. A run whose masks have not settled says about how many steps it lacks,
    and keeps its optimizer, so that it can go on.
    """
    from hybridlab.cli.training import composed, mask_learners, settings_layer, settle_and_print, train_and_print
    from hybridlab.config.loading import Layer, load_preset, load_settings, merge, parse_setting
    from hybridlab.config.method import controller_of
    from hybridlab.runs.compose import chosen_arch
    from hybridlab.training.store.folders import Runs

    arch = chosen_arch(arch, common.config, default="consa")
    preset, file = load_preset("arch", arch), load_settings(common.config)
    method = controller_of(preset.values)
    if method is None or not method.learns_masks:
        raise UserError(f"arch {arch}: masks are learned by others; add --arch {' or --arch '.join(mask_learners())}")
    written = merge(preset, file, *map(parse_setting, common.sets or ())).values
    if rho is None and not _names(written, "controller", "rho"):
        rho = 0.5
    mask = {"rho": rho, "granularity": granularity, "binarize": binarize or None}
    runs, options = Runs(common.runs_dir), settings_layer(arch, steps, seed, nearest, mask=mask, window=window)
    if not _names(written, "runtime", "keep_optimizer"):
        options = merge(options, Layer({"runtime": {"keep_optimizer": "unsettled"}}, {(): "learn-masks"}))
    config = composed(common, runs, options, arch=arch, data=data, start=start)
    (settle_and_print if until_settled else train_and_print)(config, runs, "learn-masks", common)


def _names(settings: dict[str, Any], section: str, name: str) -> bool:
    """Whether a section of settings names one of its settings."""
    part = settings.get(section)
    return isinstance(part, dict) and name in part


# ---- growth in depth ----


@o.on_ranks
def grow(
    method: Annotated[
        str,
        typer.Option(
            help="midas: copy the middle block; lidas: the layers in the middle; as controls, top: the last block; "
            "random: a block drawn anew in each growth step.",
            autocompletion=completion.methods,
        ),
    ],
    block: Annotated[
        int | None, typer.Option(min=1, help="Layers that are added at once; default: as the size, or 4.")
    ] = None,
    schedule: Annotated[
        str | None,
        typer.Option(metavar="prop-ALPHA", help="Stage i gets steps in proportion to i^ALPHA; default: prop-1."),
    ] = None,
    rounding: Annotated[
        str | None, typer.Option(help="Stages to whole steps: floor (default) or largest-remainder.")
    ] = None,
    layers: Annotated[int | None, typer.Option(min=1, help="Layers at the end; default: those of the size.")] = None,
    start: Annotated[
        str | None,
        typer.Option(
            "--from",
            help="Grow the model of a finished run (name, folder or hash), RUN/best, a Hugging Face folder or a GGUF "
            "file, with its plan and map, to --layers.",
            autocompletion=completion.runs,
        ),
    ] = None,
    arch: Annotated[
        str | None, typer.Option(help="Plan and map to grow with, such as rule-swa.", autocompletion=completion.archs)
    ] = None,
    size: o.Size = None,
    data: o.DataSource = None,
    steps: o.Steps = None,
    seed: o.Seed = None,
    masks: o.Masks = None,
    entropy_of: o.EntropyOf = None,
    nearest: o.Nearest = False,
    *,
    common: o.OneRun,
) -> None:
    """Train a model whose depth grows in stages: `pretrain --arch METHOD` with options for the growth.

    The same command resumes an unfinished run, and does nothing for a finished one.
    """
    from hybridlab.cli.training import composed, masks_file, settings_layer, train_and_print
    from hybridlab.config.loading import merge
    from hybridlab.methods.depth.options import check_arch, growth_layer, stages_in_words
    from hybridlab.runs.compose import chosen_arch
    from hybridlab.training.store.folders import Runs

    runs, arch = Runs(common.runs_dir), chosen_arch(arch, common.config, default=method)
    check_arch(arch, method, masks=masks is not None)
    options = settings_layer(arch, steps, seed, nearest, masks_file(masks, runs))
    options = merge(options, growth_layer(method, block, schedule, rounding, layers, start, runs))
    choices = {"arch": arch, "size": size, "data": data, "start": start, "entropy_of": entropy_of}
    resolved = composed(common, runs, options, **choices, keep_map=arch == method)
    say(stages_in_words(resolved))
    train_and_print(resolved, runs, "grow", common)


# ---- fine-tuning ----


@o.on_ranks
def finetune(
    run: o.ModelReference,
    task: Annotated[
        str,
        typer.Option(
            help="sst2, cola, mrpc, rte, qnli, qqp, mnli, stsb, wnli, squad, race, race-middle, hellaswag, boolq; or "
            "sft: answers in chats, or to prompts.",
            autocompletion=completion.finetune_tasks,
        ),
    ],
    data: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH",
            help="Training examples: .tsv, .csv, .jsonl, .json (SQuAD) or .parquet, or a folder with train.* and "
            "validation.* or dev.*; default: the task's dataset of the Hugging Face hub.",
        ),
    ] = None,
    validation: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH",
            help="Examples to measure with. Without it, and without such a file in the folder, a tenth of the training "
            "examples is held out (finetune.validation_fraction), also of a file that is only a dev split.",
        ),
    ] = None,
    epochs: Annotated[
        float | None, typer.Option(help="Passes over the training examples; default: as the task's preset.")
    ] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="Optimizer steps, instead of --epochs.")] = None,
    lr: Annotated[float | None, typer.Option(help="Peak learning rate; default: as the task's preset.")] = None,
    lora_rank: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Train only adapters of this rank (LoRA) and a new head; they are merged into the weights at the end. "
            "finetune.lora has more.",
        ),
    ] = None,
    seed: o.Seed = None,
    *,
    common: o.OneRun,
) -> None:
    """Train a trained model on a task with labels, with a new output head, or on the answers in chats; with its
    weights, plan and attention map.

    The same command resumes an unfinished run, and does nothing for a finished one.
    """
    from hybridlab.cli.training import composed, train_and_print
    from hybridlab.runs.compose import task_layer
    from hybridlab.training.store.folders import Runs

    runs, options = Runs(common.runs_dir), task_layer(task, data, validation, epochs, steps, lr, seed, lora_rank)
    train_and_print(composed(common, runs, options, start=run, keep_map=True, task=task), runs, "finetune", common)
