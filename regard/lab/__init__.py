"""The lab: statements about attention as small experiments, each with its formula, a measurement and a verdict.

    regard lab                     what there is
    regard lab orthogonal          run one

`regard/lab/NAME.py` is an experiment when it has a class `Settings` and a function `run`; the first line of its
docstring is its claim. `dense_map.py` is called dense-map. Listing reads the files without importing them, so it needs
no torch.
"""

from __future__ import annotations

import ast
from importlib import import_module
from pathlib import Path
from types import ModuleType

from regard.errors import InputError, did_you_mean


def names() -> list[str]:
    """The experiments.

    >>> "experiment" not in names()
    True
    """
    return list(claims())


def claims() -> dict[str, str]:
    """The experiments, each with its claim in one line."""
    found = {}
    for file in sorted(Path(__file__).parent.glob("[a-z]*.py")):
        tree = ast.parse(file.read_bytes(), file)
        defined = {node.name for node in tree.body if isinstance(node, ast.ClassDef | ast.FunctionDef)}
        if {"Settings", "run"} <= defined and file.stem != "experiment":
            found[file.stem.replace("_", "-")] = (ast.get_docstring(tree) or "").partition("\n")[0]
    return found


def load(name: str) -> ModuleType:
    """The module of an experiment: its docstring, `Settings` and `run`."""
    if name not in (known := names()):
        raise InputError("no such experiment", where="lab", got=f'"{name}"', hint=did_you_mean(name, known))
    return import_module(f"{__name__}.{name.replace('-', '_')}")
