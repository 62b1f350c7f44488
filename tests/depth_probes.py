"""What the depth probes of a model with known numbers could have found."""


def _intervention(layers, span, loss, accuracy):
    """Lists over the first layers of an intervention on `span` layers in a row."""
    starts = list(range(layers - span + 1))
    task = {"accuracy": [accuracy(i) for i in starts], "loss": [1.0 for _ in starts]}
    losses = [loss(i) for i in starts]
    # Prompts of a task, which have no accuracy, and questions one by one.
    prompts = {"accuracy": [None for _ in starts], "loss": losses}
    tasks = {"assignment": task, "lambada_openai": prompts}
    return {"starts": starts, "loss": losses, "tasks": tasks, "choices": {"assignment-math": task}}


def _changes(layers):
    """A row for each skipped layer: what every later layer loses."""
    return [[1.0 / (1 + i + j) if j > i else None for j in range(layers)] for i in range(layers)]


def sublayers(layers):
    """What attention and MLP add to the residual stream, by layer."""
    lists = {"relative": [0.2 + 0.1 * (i % 3) for i in range(layers)], "cosine": [0.1 * (i % 2) for i in range(layers)]}
    return {"attention": lists, "mlp": lists}


def depth_probes(layers, block):
    """The results of the probes on the use of depth and of interventions, for an even number of layers.

    Harm rises by 0.01 nats from each first layer to the next; reversing two layers does more harm across blocks than
    within.
    """

    def harm(span, amount):
        return _intervention(layers, span, lambda i: 2.0 + amount + 0.01 * i, lambda i: 0.8 - amount / 10)

    count = layers // block
    similar = [[1.0 if i == j else 0.5 - 0.05 * (i + j) for j in range(count)] for i in range(count)]
    answers = {"accuracy": [0.8], "loss": [0.5]}
    tasks = {"assignment": answers, "lambada_openai": {"accuracy": [None], "loss": [2.0]}}
    base = {"loss": [2.0], "tasks": tasks, "choices": {"assignment-math": answers}}
    exits = [0.2, *[0.1 * i for i in range(3, layers + 2)], 1.4]
    half = layers // 2
    pair = _intervention(layers, 2, lambda i: 2.0 + (0.4 if i % block else 0.1), lambda i: 0.7 if i % block else 0.75)
    return {
        "blocks": {"block": block, "cosine": similar, "similarity": 0.4, "asymmetry": 0.1},
        "effects": {
            "future": {axis: {"layer": {"changes": _changes(layers)}} for axis in ("propagated", "local")},
            "current": {
                "propagated": {
                    "attention": {"changes": _changes(layers)},
                    "layer": {"output": [4.0] * half + [1.0] * half},
                }
            },
        },
        "depth-score": {
            "score": {"value": 3.0, "stderr": 0.1, "n": 20},
            "effects": (effects := [4.0] * half + [1.0] * (half - 1) + [0.0]),
            "levels": {"hendrycks_math": {"effects": effects}},
        },
        "tuned-lens": {
            "overlap": [i / layers for i in range(layers + 1)],
            "kl": [0.1 * (layers - i) for i in range(layers + 1)],
            "logit_lens": {"kl": [0.1 * (layers - i) + 0.8 for i in range(layers + 1)]},
            "accuracy": {"text": [x / 2 for x in exits], "tasks": {"assignment": [x / 1.4 for x in exits]}},
            "chance": {"tasks": {"assignment": 0.2}},
        },
        "interventions": {
            "chance": {"tasks": {"assignment": 0.2}, "choices": {"assignment-math": 0.2}},
            "base": base,
            "swap": {str(s): harm(2 * s, s / 10) for s in (1, 2, 4, 8) if 2 * s <= layers},
            "skip": {str(s): harm(s, s / 4) for s in (1, 2, 4, 8) if s <= layers},
            "reverse": {"2": pair, "4": harm(4, 0.6)},
        },
    }
