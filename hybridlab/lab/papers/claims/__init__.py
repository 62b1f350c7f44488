"""Tests of the papers' claims: expressions, claim kinds beside them, and the verdict on both.

Importing this package imports every module in it, which registers the claim kinds that they define.
"""

import importlib
import pkgutil

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")
