"""The lab: statements about attention as small experiments, each with its formula, a measurement
and a verdict.

    regard lab                     what there is
    regard lab orthogonal          run one
    regard lab all                 run all of them

`regard/lab/NAME.py` is an experiment when it has a class `Settings` and a function `run`; the first
line of its docstring is its claim, and `ALSO` has other words for it. `dense_map.py` is called
dense-map. Listing reads the files without importing them, so it needs no torch.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from types import ModuleType

from regard.errors import InputError, did_you_mean

ALL = "all"  # every experiment, where one is named


def names() -> list[str]:
    """The experiments.

    >>> "experiment" not in names()
    True
    """
    return list(claims())


def claims() -> dict[str, str]:
    """The experiments, each with its claim in one line."""
    return {name: claim_of(ast.get_docstring(tree)) for name, tree in _experiments()}


def claim_of(docstring: str | None) -> str:
    """The first paragraph of an experiment's docstring, in one line.

    >>> claim_of("Orthogonal inputs come out\\nunchanged.\\n\\nThe formula.")
    'Orthogonal inputs come out unchanged.'
    """
    return " ".join((docstring or "").partition("\n\n")[0].split())


def synonyms() -> dict[str, str]:
    """What else people call the experiments (`ALSO` in their files), and which of them each word
    means.

    >>> synonyms()["multihead"]
    'heads'
    """
    words = {}
    for name, tree in _experiments():
        for node in tree.body:
            match node:
                case ast.Assign(targets=[ast.Name(id="ALSO")], value=value):
                    words |= dict.fromkeys(ast.literal_eval(value), name)
    return words


def _experiments() -> Iterator[tuple[str, ast.Module]]:
    """Name and source of each, which is read and not run."""
    for file in sorted(Path(__file__).parent.glob("[a-z]*.py")):
        tree = ast.parse(file.read_bytes(), file)
        defined = {
            node.name for node in tree.body if isinstance(node, ast.ClassDef | ast.FunctionDef)
        }
        if {"Settings", "run"} <= defined and file.stem != "experiment":
            yield file.stem.replace("_", "-"), tree


def load(name: str) -> ModuleType:
    """The module of an experiment: its docstring, `Settings` and `run`."""
    if name not in names():
        raise InputError("no such experiment", where="lab", got=f'"{name}"', hint=_nearest(name))
    return import_module(f"{__name__}.{name.replace('-', '_')}")


def _nearest(word: str) -> str | None:
    """The experiment with the nearest name, or that the nearest of their other names means."""
    known = names()
    others = synonyms()
    near = get_close_matches(word.lower(), [*known, *others], n=1, cutoff=0.6)
    if not near:
        return did_you_mean(word, [*known, ALL])
    return f'did you mean "{others.get(near[0], near[0])}"?'
