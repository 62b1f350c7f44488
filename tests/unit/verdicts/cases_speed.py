"""Claims about speed, on times of five rounds."""

from tests.unit.verdicts.building import benchmark, case

FAST, SLOW = [1.0, 1.02, 0.98, 1.01, 0.99], [2.0, 2.02, 1.98, 2.01, 1.99]
NOISY = [0.5, 2.0, 1.0, 0.6, 1.7]


def decoding(ours, theirs, late=None):
    return benchmark(
        small={"A": {"prefill": ours, "decode": ours}, "B": {"prefill": theirs, "decode": theirs}},
        large={"A": {"prefill": ours, "decode": ours}, "B": {"prefill": theirs, "decode": late or theirs}},
    )


models = {"rows": ["A"], "over": ["B"]}
case("faster_decoding", True, models, decoding(FAST, SLOW), "faster in 4 of 4 comparisons, smallest ratio 2.000")
case("faster_decoding", False, models, decoding(SLOW, FAST), "; slower: A / B, small, batch 1, prefill: 0.500 ± 0.")
case("faster_decoding", False, models, decoding(FAST, SLOW, late=[0.5] * 5), "faster in 3 of 4 comparisons")
case("faster_decoding", None, models, decoding(FAST, SLOW, late=NOISY), "; not resolved: A / B, large, batch 1, decode")
case("faster_decoding", None, models, {}, "not run")

part = models | {"part": "prefill"}
case("faster", True, part, decoding(FAST, SLOW), "A / B, prefill: 0.50")
case("faster", False, part, decoding(SLOW, FAST), "A / B, prefill: 2.0")
case("faster", None, part, decoding(FAST, NOISY), "(n = 5 rounds, not resolved)")
case("faster", None, part, {}, "not run")
case("faster", None, models | {"part": "token"}, decoding(FAST, SLOW), "not measured: token")


def tokens(critical, token):
    return benchmark(small={"A": {"token": token, **({"critical": critical} if critical else {})}})


case("shorter_path", True, {"model": "A"}, tokens(FAST, SLOW), "A: a token without its bodies over chunks: 0.50")
case("shorter_path", False, {"model": "A"}, tokens(SLOW, FAST))
case("shorter_path", None, {"model": "A"}, tokens(NOISY, FAST), "not resolved")
case("shorter_path", None, {"model": "A"}, tokens(None, FAST), "A has no iterations over chunks")
case("shorter_path", None, {"model": "A"}, {}, "not run")
