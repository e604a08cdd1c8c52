"""Read recipes from files: shipped ones, the user's own, the base they extend; and compare them."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from regard.errors import RecipeError, did_you_mean
from regard.fields import shown
from regard.recipe.marked import leaves
from regard.recipe.whole import Recipe, merged, read_overrides, schema_of, validated

FOLDER = Path(__file__).parent / "shipped"
LARGEST_FILE = 1 << 20  # bytes; a larger file is not a recipe


def names() -> list[str]:
    """Names of the shipped recipes.

    >>> "chat-attention" in names() and "reference/chat-classic" in names()
    True
    """
    files = (file.relative_to(FOLDER).with_suffix("").as_posix() for file in FOLDER.rglob("*.toml"))
    return sorted(files, key=lambda name: (name.count("/"), name))


def resolve_file(name: str | Path) -> Path:
    """The file of a shipped recipe, or a path. A shipped name takes precedence unless it ends in
    .toml."""
    path = Path(name)
    if path.suffix != ".toml" and str(name) in names():
        return FOLDER / f"{name}.toml"
    try:
        is_folder = path.is_dir()
    except OSError as error:  # the name is too long, or its folder may not be read
        raise RecipeError(error.strerror or "cannot be read", where=name) from None
    if is_folder:
        raise RecipeError("a recipe is a .toml file, this is a folder", where=name)
    if not path.exists():
        what = "no such file" if path.suffix == ".toml" else "no such recipe"
        raise RecipeError(what, where=name, hint=did_you_mean(path.stem, names()))
    if path.suffix != ".toml" or not path.is_file():
        raise RecipeError(
            "not a recipe: a .toml file is one", where=name, hint="regard recipes list names others"
        )
    return path


def text(name: str | Path) -> str:
    """The TOML source of a recipe, with its comments."""
    path = resolve_file(name)
    try:
        if path.stat().st_size > LARGEST_FILE:
            raise RecipeError(
                "too large for a recipe", where=path, got=f"{path.stat().st_size:,} bytes"
            )
        return path.read_bytes().decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        raise RecipeError(
            "not UTF-8 text", where=path, got=f"byte 0x{error.object[error.start]:02x}"
        ) from None
    except OSError as error:
        raise RecipeError(error.strerror or "cannot be read", where=path) from None


def load(name_or_path: str | Path, overrides: Sequence[str] = ()) -> Recipe:
    """Load a shipped recipe or a file, on top of the base it extends, and apply overrides of the
    form `section.field=value`.

    >>> load("chat-attention", ["encoder.width=64", "encoder.cell=gru"]).decoder.width
    64
    """
    own = _toml(name_or_path)
    changes = read_overrides(overrides)
    tree = own
    layers = {"--set": changes, str(name_or_path): own}

    base_name = own.get("extends")
    if isinstance(base_name, str):
        base = _base(name_or_path, base_name)
        tree = merged(base, own, carry=False)
        layers[base_name] = base
    return validated(merged(tree, changes, carry=True), str(name_or_path), layers)


def differences(a: Recipe, b: Recipe) -> list[str]:
    """The fields in which two recipes differ, one line for each; `summary` and `extends` are not
    compared.

    >>> differences(load("chat-attention"), load("chat-attention", ["seed=2"]))
    ['seed: 1 -> 2']
    """
    left = dict(leaves(a.to_json()))
    right = dict(leaves(b.to_json()))
    lines = []
    for key in left | right:
        if key in ("summary", "extends"):
            continue
        if left.get(key) != right.get(key):
            lines.append(f"{key}: {shown(left.get(key))} -> {shown(right.get(key))}")
    return lines


def is_whole(recipe: Recipe, key: str) -> bool:
    """Whether the field `section.name` takes whole numbers only.

    >>> recipe = load("chat-attention")
    >>> is_whole(recipe, "encoder.width"), is_whole(recipe, "train.learning_rate")
    (True, False)
    """
    section, _, name = key.rpartition(".")
    kind = getattr(getattr(recipe, section), "kind", "") if section else ""
    schema = schema_of((section, name) if section else (name,), kind)
    kinds = {option.get("type") for option in schema.get("anyOf", [schema])}
    return "integer" in kinds and "number" not in kinds


def _toml(name_or_path: str | Path) -> dict[str, Any]:
    """The parsed TOML of a recipe, not validated."""
    try:
        return tomllib.loads(text(name_or_path))
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        cause = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise RecipeError(f"not TOML: {cause}", where=name_or_path) from None


def _base(child: str | Path, name: str) -> dict[str, Any]:
    """The parsed TOML of the base that `child` extends, without its summary."""
    sibling = resolve_file(child).parent / name
    try:
        base = _toml(sibling if name.endswith(".toml") else name)
    except RecipeError as error:
        raise RecipeError(f"extends: {error}", where=child) from None
    if "extends" in base:
        raise RecipeError(
            "extends: one level only",
            where=child,
            got=f"{name}, which extends {base['extends']}",
            hint=f'extend "{base["extends"]}" and copy what {name} changes',
        )
    base.pop("summary", None)  # it describes the base
    return base
