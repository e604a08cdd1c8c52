"""Finds calls that may load a pickle, or run code from a file in another way.

    python -m tests.no_pickle regard

Names are followed through imports (`import numpy as np`, `from torch import load as read`), so that
an alias hides nothing. `make check` runs it over regard/.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

MODULES = {
    "pickle": "loads pickles",
    "cPickle": "loads pickles",
    "_pickle": "loads pickles",
    "dill": "loads pickles",
    "cloudpickle": "loads pickles",
    "joblib": "loads pickles",
    "shelve": "loads pickles",
    "marshal": "loads code",
    "datasets": "runs scripts of data sets",
    "multiprocessing.connection": "recv() loads pickles",
    "ray": "loads pickles of other nodes",
    "torch.package": "loads code",
    "torch.serialization": "loads pickles",
}
# Ray's nodes trust each other: it is only used where somebody names a cluster.
EXCEPT = {("ray", "fleet/address.py"), ("ray", "fleet/worker.py"), ("ray", "serve/ray.py")}
NAMES = {
    "torch.load": "loads a pickle",
    "torch.save": "writes a pickle",
    "torch.jit.load": "loads code",
    "torch.jit.save": "writes code",
    "torch.export.load": "loads code and pickles",
    "torch.export.save": "writes code and pickles",
    "torch.hub.load": "runs code of a repository",
    "torch.hub.load_state_dict_from_url": "loads a pickle",
    "pandas.read_pickle": "loads a pickle",
    "pandas.read_hdf": "loads pickles",
    "concurrent.futures.ProcessPoolExecutor": "its processes load pickles",
    "concurrent.futures.process.ProcessPoolExecutor": "its processes load pickles",
    "yaml.load": "may make any object; use yaml.safe_load",
    "yaml.load_all": "may make any object; use yaml.safe_load_all",
    "yaml.unsafe_load": "makes any object; use yaml.safe_load",
    "yaml.full_load": "may make any object; use yaml.safe_load",
}
PROCESSES = (
    *("JoinableQueue", "Manager", "Pipe", "Pool", "Process", "Queue", "SimpleQueue"),
    *("get_context", "spawn", "start_processes"),
)
# What loads pickles of a package, under the names that its modules give it.
FAMILIES: dict[str, dict[str, str]] = {
    "torch.distributed": {
        "all_gather_object": "loads pickles of other processes",
        "broadcast_object_list": "loads pickles of other processes",
        "gather_object": "loads pickles of other processes",
        "recv_object_list": "loads pickles of other processes",
        "scatter_object_list": "loads pickles of other processes",
        "send_object_list": "sends pickles to other processes",
    },
    "torch.distributed.checkpoint": {
        "async_save": "may write a pickle",
        "load": "may load a pickle",
        "load_state_dict": "may load a pickle",
        "save": "may write a pickle",
        "save_state_dict": "may write a pickle",
        "FileSystemReader": "loads a pickle",
        "FileSystemWriter": "writes a pickle",
    },
    "multiprocessing": dict.fromkeys(PROCESSES, "sends pickles between processes"),
    "torch.multiprocessing": dict.fromkeys(PROCESSES, "sends pickles between processes"),
}
PREFIXES = {"sklearn.datasets.fetch_": "loads pickles of its cache"}
# Allowed if `allow_pickle=False` is written in the call.
NUMPY = {"numpy.load", "numpy.save", "numpy.savez", "numpy.savez_compressed"}
METHODS = {"to_pickle": "writes a pickle", "read_pickle": "loads a pickle"}
FLAGS = {"allow_pickle": False, "weights_only": True, "trust_remote_code": False}


class Finding(NamedTuple):
    line: int
    what: str


def findings(source: str) -> list[Finding]:
    """What one file does that it may not, by line.

    >>> findings("import numpy as np\\nnp.load('a.npz')")
    [Finding(line=2, what='numpy.load without allow_pickle=False: may load a pickle')]
    >>> findings("import numpy as np\\nnp.load('a.npz', allow_pickle=False)")
    []
    """
    tree = ast.parse(source)
    imports = _imports(tree)
    checked: set[ast.AST] = set()  # functions of calls that are allowed
    result: list[Finding] = []
    for node in ast.walk(tree):
        result += _of_import(node)
        if isinstance(node, ast.Call):
            result += _of_call(node, imports, checked)
    for node in ast.walk(tree):
        if node in checked or not isinstance(node, ast.Name | ast.Attribute):
            continue
        name = _full_name(node, imports)
        if what := _danger(name):
            result.append(Finding(node.lineno, f"{name} {what}"))
        elif name in NUMPY:
            what = f"{name} without allow_pickle=False: may load a pickle"
            result.append(Finding(node.lineno, what))
        elif isinstance(node, ast.Attribute) and node.attr in METHODS:
            result.append(Finding(node.lineno, f".{node.attr} {METHODS[node.attr]}"))
        elif name is not None and (module := _forbidden(name)) and module not in imports.values():
            result.append(Finding(node.lineno, f"{module} {MODULES[module]}"))
    return sorted({*result})


def _imports(tree: ast.AST) -> dict[str, str]:
    """What each imported name stands for: np is numpy, and read is torch.load."""
    names = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                whole = alias.name if alias.asname else alias.name.partition(".")[0]
                names[alias.asname or whole] = whole
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                names[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    return names


def _full_name(node: ast.AST, imports: dict[str, str]) -> str | None:
    """`np.load` as numpy.load, if np was imported."""
    if isinstance(node, ast.Name):
        return imports.get(node.id)
    if isinstance(node, ast.Attribute):
        owner = _full_name(node.value, imports)
        return None if owner is None else f"{owner}.{node.attr}"
    return None


def _forbidden(name: str) -> str | None:
    """The module of the list that this is, or is in."""
    return next((module for module in MODULES if f"{name}.".startswith(f"{module}.")), None)


def _danger(name: str | None) -> str | None:
    """What a name does that is not allowed, or None."""
    if name is None:
        return None
    if name in NAMES:
        return NAMES[name]
    for prefix, what in PREFIXES.items():
        if name.startswith(prefix):
            return what
    last = name.rpartition(".")[2]
    for package, members in FAMILIES.items():
        if name.startswith(f"{package}.") and last in members:
            return members[last]
    return None


def _of_import(node: ast.AST) -> Iterator[Finding]:
    if isinstance(node, ast.Import):
        names = [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
        names = [f"{node.module}.{alias.name}" for alias in node.names]
    else:
        return
    for name in names:
        if module := _forbidden(name):
            yield Finding(node.lineno, f"import of {module}, which {MODULES[module]}")


def _of_call(node: ast.Call, imports: dict[str, str], checked: set[ast.AST]) -> Iterator[Finding]:
    name = _full_name(node.func, imports)
    flags = {keyword.arg: keyword.value for keyword in node.keywords}
    for flag, safe in FLAGS.items():
        value = flags.get(flag)
        if value is None:
            continue
        if not isinstance(value, ast.Constant) or value.value is not safe:
            yield Finding(node.lineno, f"{flag} must be {safe}, as a constant")
        elif flag == "allow_pickle" and name in NUMPY:
            checked.add(node.func)
    if _imports_by_name(node, name) and (module := _forbidden(_text(node.args[0]))):
        yield Finding(node.lineno, f"import of {module}, which {MODULES[module]}")
    if isinstance(node.func, ast.Name) and node.func.id == "getattr" and len(node.args) > 1:
        whole = f"{_full_name(node.args[0], imports)}.{_text(node.args[1])}"
        if what := _danger(whole) or ("may load a pickle" if whole in NUMPY else None):
            yield Finding(node.lineno, f"{whole} {what}")


def _imports_by_name(node: ast.Call, name: str | None) -> bool:
    is_import = isinstance(node.func, ast.Name) and node.func.id == "__import__"
    return bool(node.args) and (is_import or name == "importlib.import_module")


def _text(node: ast.AST) -> str:
    return str(node.value) if isinstance(node, ast.Constant) else ""


def _is_excepted(file: Path, what: str) -> bool:
    return any(
        what.startswith(f"import of {module},") and file.as_posix().endswith(f"/{name}")
        for module, name in EXCEPT
    )


def main(folders: list[str]) -> int:
    count = 0
    for folder in folders:
        files = sorted(Path(folder).rglob("*.py"))
        if not files:
            print(f"{folder}: no Python files", file=sys.stderr)
            return 2
        for file in files:
            for line, what in findings(file.read_text("utf-8")):
                if _is_excepted(file, what):
                    continue
                print(f"{file}:{line}: {what}", file=sys.stderr)
                count += 1
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
