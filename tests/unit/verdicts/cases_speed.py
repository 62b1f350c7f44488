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
case("faster", True, models, four, "^ln of the times A / B, small, batch 1, prefill = -0.692", n=5)
case("faster", True, models, four, ("small, batch 1, decode", "large, batch 1, prefill", "large, batch 1, decode"))
case("faster", True, models, four, "0.500 ± 0.0", note="")
case("faster", False, models, decoding(SLOW, FAST), "= +0.692")
case("faster", False, models, decoding(FAST, SLOW, late=[0.5, 0.51, 0.49, 0.5, 0.5]))
unresolved = decoding(FAST, SLOW, late=NOISY)
case("faster", None, models, unresolved, "rounds up to 10,000 would resolve the observed effect")
case("faster", "not run", models, {}, "^not run$")

# One part, at every size.
part = models | {"parts": ["prefill"]}
case("faster", True, part, unresolved, "ln of the times A / B, small, batch 1, prefill = -0.692")
case("faster", False, part, decoding(SLOW, FAST))
case("faster", None, part, decoding(FAST, NOISY), "n = 5 rounds")
case("faster", None, part, decoding(FAST, FAST), "both gave the same numbers")
case("faster", "not run", part, {}, "not run")
case("faster", "not run", models | {"parts": ["token"]}, four, "not measured: token")

# So many times the time of the other, at one size and batch.
bound = {"rows": ["B"], "over": ["A"], "parts": ["prefill"], "group": "small", "batch": 1}
case("faster", True, bound | {"times": 2.5}, four, "^ln of the times B / A, small, batch 1, prefill = +0.69")
case("faster", True, bound | {"times": 2.5}, four, "required below 0.916")
case("faster", False, bound | {"times": 1.5}, four, "required below 0.405")
case("faster", None, bound | {"times": 1.2}, decoding(FAST, NOISY), "n = 5 rounds")
case("faster", "not run", bound | {"group": "huge"}, four, "not measured: huge, batch 1")
case("faster", "not run", bound | {"batch": 8}, four, "not measured: small, batch 8")
case("faster", "not run", bound | {"parts": ["token"]}, four, "not measured: token")
# Of two sizes one alone has the late decoding.
late = decoding(FAST, SLOW, late=[0.5, 0.51, 0.49, 0.5, 0.5])
case("faster", True, models | {"group": "small"}, late)
case("faster", False, models | {"group": "large", "batch": 1}, late)


def tokens(critical, token):
    return benchmark(small={"A": {"token": token, **({"critical": critical} if critical else {})}})


# A token's time without loop bodies over chunks, which it need not wait for, beside its whole time.
path = {"rows": ["A"], "over": ["A"], "parts": ["critical"], "over_part": "token"}
case("faster", True, path, tokens(FAST, SLOW), "^ln of the times A / A, small, batch 1, critical / token = -0.692")
case("faster", False, path, tokens(SLOW, FAST))
case("faster", None, path, tokens(NOISY, FAST))
case("faster", None, path, tokens(None, FAST), "the model has no iterations over chunks")
case("faster", "not run", path, {}, "not run")
