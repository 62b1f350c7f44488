"""Claims that need no run: stated and computed numbers, and what papers derive."""

from tests.unit.verdicts.building import case


def number(value):
    return {"function": "given_number", "number": value}


product = {"factors": [2, 3, 5], "stated": 30}
case("stated_product", True, product, evidence="^2 × 3 × 5 = 30, stated 30 (+0.0 %)")
case("stated_product", True, product | {"stated": 30.2})
case("stated_product", False, product | {"stated": 31}, evidence="(-3.2 %)")
case("stated_product", False, product | {"stated": 29})
case("stated_product", True, product | {"stated": 31, "within": 0.05})

value = {"compute": number(3.0)}
case("computes", True, value | {"low": 3, "high": 3}, evidence="^exact: 3, stated 3 to 3")
case("computes", False, value | {"low": 3.1, "high": 4})
case("computes", False, value | {"low": 2, "high": 2.9})
case("computes", True, value | {"low": 6, "high": 6, "factor": 2})

ordered = {"computes": [number(1), number(2), number(4)]}
case("computed_in_order", True, ordered | {"direction": "rises"}, evidence="^exact: 1, 2, 4")
case("computed_in_order", False, ordered | {"direction": "falls"})
case("computed_in_order", True, {"computes": [number(2), number(1)], "direction": "falls"})
case("computed_in_order", False, {"computes": [number(1), number(2), number(2)], "direction": "rises"})

ratio = {"compute": number(3.0), "over": number(2.0)}
case("computed_ratio", True, ratio | {"low": 1.5, "high": 1.5}, evidence="^exact: 3 / 2 = 1.5, stated 1.5 to 1.5")
case("computed_ratio", False, ratio | {"low": 1.6, "high": 2})
case("computed_ratio", False, ratio | {"low": 1, "high": 1.4})

shift = {"chunk": 4}
case("shift_keeps_order", True, shift | {"shift": 3, "causal": True, "overlap": 1}, evidence="0 of 4 positions see")
case("shift_keeps_order", True, shift | {"shift": 4, "causal": True, "overlap": 0}, evidence="0 their own chunk")
case("shift_keeps_order", True, shift | {"shift": 2, "causal": False, "overlap": 2}, evidence="1 of 4 positions see")
case("shift_keeps_order", True, shift | {"shift": 0, "causal": False}, evidence="3 of 4 positions see")
case("shift_keeps_order", False, shift | {"shift": 2, "causal": True})
case("shift_keeps_order", False, shift | {"shift": 3, "causal": True, "overlap": 0})
case("shift_keeps_order", False, shift | {"shift": 3, "causal": False, "overlap": 1})
case("shift_keeps_order", True, shift | {"shift": 3, "causal": True, "overlap": 1, "offset": "half"})
case("shift_keeps_order", True, shift | {"shift": 2, "causal": False, "overlap": 2, "offset": "half"})

case("triggers_at", True, {"chunk": 4, "offset": "zero", "residue": 3}, evidence="i ≡ 3 (mod 4)")
case("triggers_at", True, {"chunk": 4, "offset": "half", "residue": 1}, evidence="i ≡ 1 (mod 4)")
case("triggers_at", False, {"chunk": 4, "offset": "half", "residue": 3})

bodies = {"chunks": [8, 4, 2, 1]}
zero, half = bodies | {"offset": "zero"}, bodies | {"offset": "half"}
case("triggers_per_token", True, zero | {"least": 1, "most": 4}, evidence="i = 0 … 7: 1, 2, 1, 3, 1, 2, 1, 4")
case("triggers_per_token", True, half | {"least": 1, "most": 2}, evidence="i = 0 … 7: 2, 2, 2, 2, 2, 2, 2, 1")
case("triggers_per_token", False, half | {"least": 2, "most": 2})
case("triggers_per_token", False, half | {"least": 1, "most": 4})


causal = {"matrix": [[1.0, 0.0], [0.5, 0.5]]}
case("matrix_is", False, causal | {"what": "strictly lower triangular"}, evidence="above the diagonal: 1")
case("matrix_is", True, {"matrix": [[0.0, 0.0], [2.0, 0.0]], "what": "strictly lower triangular"})
case(
    "matrix_is", True, causal | {"what": "eigenvalues on the diagonal"}, evidence="eigenvalues 0.5, 1; diagonal 0.5, 1"
)
case("matrix_is", False, {"matrix": [[0.5, 0.5], [0.5, 0.5]], "what": "eigenvalues on the diagonal"})
case("matrix_is", True, causal | {"what": "rows sum to one", "mixed": 0.5}, evidence="sums of rows: 1, 1")
case("matrix_is", False, {"matrix": [[1.0, 0.0], [0.5, 0.2]], "what": "rows sum to one"}, evidence="rows: 1, 0.7")
case(
    "matrix_is",
    False,
    {"matrix": [[1.0, 0.0], [0.5, 0.2]], "what": "rows sum to one", "mixed": 0.5},
    evidence="1, 0.85",
)

bound = {"mixed": 1.0, "passes": 1}
case("eigenvalues_bound_norm", True, bound | {"matrix": [[1.0, 0.0], [0.0, 1.0]]}, evidence="norm 1.414, bound 1.414")
case("eigenvalues_bound_norm", False, bound | causal, evidence="norm 1.225, bound 1.118 (K = 1, β = 1)")
case("eigenvalues_bound_norm", False, causal | {"mixed": 0.5, "passes": 1}, evidence="norm 1.275, bound 1.250")
case("eigenvalues_bound_norm", True, causal | {"mixed": 0.5, "passes": 2}, evidence="bound 1.562 (K = 2, β = 0.5)")

case("error_shrinks", True, {"matrix": [[0.5, 0.0], [0.5, 0.5]], "mixed": 1.0}, evidence="largest eigenvalue 0.5")
case("error_shrinks", False, causal | {"mixed": 0.5}, evidence="largest eigenvalue 1")
case("error_shrinks", False, {"matrix": [[0.5, 0.0], [0.5, -1.0]], "mixed": 1.0})

shares = {"factors": [3, 4], "over": [2, 4]}
case("stated_ratio", True, shares | {"low": 1.5, "high": 1.5}, evidence="^3 × 4 / 2 × 4 = 1.5, stated 1.5 to 1.5")
case("stated_ratio", False, shares | {"low": 1.6, "high": 2})
case("stated_ratio", False, shares | {"low": 1, "high": 1.4})

case("stated_sum", True, {"terms": [70, 15, 9, 6], "stated": 100}, evidence="^70 + 15 + 9 + 6 = 100, stated 100$")
case("stated_sum", False, {"terms": [2, 2, 1], "stated": 4}, evidence="^2 + 2 + 1 = 5, stated 4$")

falling = {"sequences": [[0.9, 0.8], [3, 2, 1]]}
case("stated_in_order", True, falling | {"direction": "falls"}, evidence="^stated: 0.9, 0.8; 3, 2, 1$")
case("stated_in_order", False, falling | {"direction": "rises"}, evidence="(not: 0.9, 0.8; 3, 2, 1)")
case("stated_in_order", False, {"sequences": [[1, 2], [2, 2]], "direction": "rises"}, evidence="(not: 2, 2)")
case("stated_in_order", True, {"sequences": [[1, 2, 5]], "direction": "rises"})
