"""Depth growth: claims on which layers are copied."""

from tests.unit.verdicts.building import case

same = {"sizes": [2, 3, 4], "coincide": True}
case("copies_coincide", True, same | {"blocks": [1, 3, 5]}, evidence="^operator: the same layers in 9 of 9 cases$")
case("copies_coincide", False, same | {"blocks": [1, 2], "sizes": [4]}, evidence="in 1 of 2 cases (not: 2 blocks of 4)")
other = {"blocks": [2, 4], "sizes": [2, 4]}
case("copies_coincide", True, other | {"coincide": False}, evidence="^operator: other layers in 4 of 4 cases$")
# With blocks of a single layer the two do not differ.
case(
    "copies_coincide", False, {**other, "sizes": [1], "coincide": False}, evidence="(not: 2 blocks of 1; 4 blocks of 1)"
)

four = {"blocks": 4, "size": 4}
lidas = {"method": "lidas", "layers": [6, 7, 8, 9]}
case(
    "copies_layers",
    True,
    four | lidas,
    evidence=("^operator: 6, 7, 8, 9 are copied; ", "7 8 9 6 7 8 9 10 11 12 13 14 15$"),
)
case("copies_layers", True, four | {"method": "midas", "layers": [4, 5, 6, 7]})
case("copies_layers", False, four | {"method": "midas", "layers": [6, 7, 8, 9]})
case("copies_layers", False, four | {**lidas, "layers": [5, 6, 7, 8, 9]})
