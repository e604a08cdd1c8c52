"""The lab: small experiments, each of which tests one statement about attention.

    regard lab                     list the experiments
    regard lab orthogonal          run one
    regard lab all                 run all of them

A file `regard/lab/NAME.py` is an experiment if it defines a class `Settings` and a function `run`.
The first paragraph of its docstring is its claim; `FORMULAS` has the formulas of the docstring in
LaTeX, a group for each indented block; `ALSO` lists synonyms of its name. The experiment
in `dense_map.py` is called dense-map. Experiments are listed from their source, without importing
them, so listing does not need torch.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from types import ModuleType

from regard.errors import InputError, did_you_mean

ALL = "all"  # instead of a name: every experiment


def names() -> list[str]:
    """The names of all experiments.

    >>> "experiment" not in names()
    True
    """
    return list(claims())


def claims() -> dict[str, str]:
    """The claim of every experiment, by name, each in one line."""
    return {name: claim_of(ast.get_docstring(tree)) for name, tree in _experiments()}


def claim_of(docstring: str | None) -> str:
    """The first paragraph of an experiment's docstring, in one line.

    >>> claim_of("Orthogonal inputs come out\\nunchanged.\\n\\nThe formula.")
    'Orthogonal inputs come out unchanged.'
    """
    return " ".join((docstring or "").partition("\n\n")[0].split())


def synonyms() -> dict[str, str]:
    """The experiment that each synonym (`ALSO` in the files) stands for.

    >>> synonyms()["multihead"]
    'heads'
    """
    names_by_synonym = {}
    for name, tree in _experiments():
        for node in tree.body:
            match node:
                case ast.Assign(targets=[ast.Name(id="ALSO")], value=value):
                    names_by_synonym |= dict.fromkeys(ast.literal_eval(value), name)
    return names_by_synonym


def _experiments() -> Iterator[tuple[str, ast.Module]]:
    """Name and syntax tree of each experiment; the file is parsed, not run."""
    for file in sorted(Path(__file__).parent.glob("[a-z]*.py")):
        tree = ast.parse(file.read_bytes(), file)
        definitions = {
            node.name for node in tree.body if isinstance(node, ast.ClassDef | ast.FunctionDef)
        }
        if {"Settings", "run"} <= definitions and file.stem != "experiment":
            yield file.stem.replace("_", "-"), tree


def load(name: str) -> ModuleType:
    """The module of an experiment: its docstring, `Settings` and `run`."""
    if name not in names():
        raise InputError("no such experiment", where="lab", got=f'"{name}"', hint=_nearest(name))
    return import_module(f"{__name__}.{name.replace('-', '_')}")


def _nearest(word: str) -> str | None:
    """A hint with the experiment whose name or synonym is most similar to `word`."""
    known = names()
    known_synonyms = synonyms()
    matches = get_close_matches(word.lower(), [*known, *known_synonyms], n=1, cutoff=0.6)
    if not matches:
        return did_you_mean(word, [*known, ALL])
    match = matches[0]
    return f'did you mean "{known_synonyms.get(match, match)}"?'
