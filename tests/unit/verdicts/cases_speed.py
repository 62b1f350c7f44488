"""Claims about speed, on times of five rounds."""

from tests.unit.verdicts.building import benchmark, case

FAST, SLOW = [1.0, 1.02, 0.98, 1.01, 0.99], [2.0, 2.03, 1.97, 2.01, 1.98]
NOISY = [0.5, 2.0, 1.0, 0.6, 1.7]


def decoding(ours, theirs, late=None):
    return benchmark(
        small={"A": {"prefill": ours, "decode": ours}, "B": {"prefill": theirs, "decode": theirs}},
        large={"A": {"prefill": ours, "decode": ours}, "B": {"prefill": theirs, "decode": late or theirs}},
    )


models = {"rows": ["A"], "over": ["B"]}
four = decoding(FAST, SLOW)
case("faster_decoding", True, models, four, "^ln of the times A / B, small, batch 1, prefill = -0.692", n=5)
case("faster_decoding", True, models, four, "0.500 ± 0.0", note="")
case("faster_decoding", False, models, decoding(SLOW, FAST), "= +0.692")
case("faster_decoding", False, models, decoding(FAST, SLOW, late=[0.5, 0.51, 0.49, 0.5, 0.5]))
case(
    "faster_decoding",
    None,
    models,
    decoding(FAST, SLOW, late=NOISY),
    "rounds up to 10,000 would resolve the observed effect",
)
case("faster_decoding", "not run", models, {}, "^not run$")

part = models | {"part": "prefill"}
case("faster", True, part, four, "ln of the times A / B, prefill = -0.692")
case("faster", False, part, decoding(SLOW, FAST))
case("faster", None, part, decoding(FAST, NOISY), "n = 5 rounds")
case("faster", None, part, decoding(FAST, FAST), "both gave the same numbers")
case("faster", "not run", part, {}, "not run")
case("faster", "not run", models | {"part": "token"}, four, "not measured: token")

bound = {"row": "B", "over": "A", "part": "prefill", "group": "small", "batch": 1}
case("time_at_most", True, bound | {"ratio": 2.5}, four, "B / A, prefill, small, batch 1 = +0.69")
case("time_at_most", True, bound | {"ratio": 2.5}, four, "asked below 0.916")
case("time_at_most", False, bound | {"ratio": 1.5}, four, "asked below 0.405")
case("time_at_most", None, bound | {"ratio": 1.2}, decoding(FAST, NOISY), "n = 5 rounds")
case("time_at_most", "not run", bound | {"ratio": 2.5, "group": "huge"}, four, "not measured: huge, batch 1")
case("time_at_most", "not run", bound | {"ratio": 2.5, "batch": 8}, four, "not measured: small, batch 8")
case("time_at_most", "not run", bound | {"ratio": 2.5, "part": "token"}, four, "not measured: token")
case("time_at_most", "not run", bound | {"ratio": 2.5}, {}, "^not run$")


def tokens(critical, token):
    return benchmark(small={"A": {"token": token, **({"critical": critical} if critical else {})}})


case(
    "shorter_path",
    True,
    {"model": "A"},
    tokens(FAST, SLOW),
    "^ln of the times A: a token without its bodies over chunks = -0.692",
)
case("shorter_path", False, {"model": "A"}, tokens(SLOW, FAST))
case("shorter_path", None, {"model": "A"}, tokens(NOISY, FAST))
case("shorter_path", None, {"model": "A"}, tokens(None, FAST), "A has no iterations over chunks")
case("shorter_path", "not run", {"model": "A"}, {}, "not run")
