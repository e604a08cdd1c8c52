"""Recipes from their files: the shipped ones, a person's own, what they extend and how they
differ."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from regard.errors import RecipeError, did_you_mean
from regard.recipe.fields import shown
from regard.recipe.whole import Recipe, merged, read_overrides, schema_of, validated

FOLDER = Path(__file__).parent / "shipped"
LARGEST_FILE = 1 << 20  # a recipe is a page; anything larger is some other file


def names() -> list[str]:
    """The shipped recipes.

    >>> "chat-attention" in names() and "reference/chat-classic" in names()
    True
    """
    files = (file.relative_to(FOLDER).with_suffix("").as_posix() for file in FOLDER.rglob("*.toml"))
    return sorted(files, key=lambda name: (name.count("/"), name))


def resolve_file(name: str | Path) -> Path:
    """The file of a shipped recipe's name, or of a path; the name wins unless the path ends in
    .toml."""
    path = Path(name)
    if path.suffix != ".toml" and str(name) in names():
        return FOLDER / f"{name}.toml"
    if path.is_dir():
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
    """The TOML of a recipe as it was written, comments and all."""
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
    """A shipped recipe or a file, what it extends, and overrides of the form `section.field=value`,
    in that order.

    >>> load("chat-attention", ["encoder.width=64", "encoder.cell=gru"]).decoder.width
    64
    """
    own, changes = _toml(name_or_path), read_overrides(overrides)
    tree, layers = own, {"--set": changes, str(name_or_path): own}
    if isinstance(base_name := own.get("extends"), str):
        base = _base(name_or_path, base_name)
        tree, layers = merged(base, own, carry=False), layers | {base_name: base}
    return validated(merged(tree, changes, carry=True), str(name_or_path), layers)


def differences(a: Recipe, b: Recipe) -> list[str]:
    """What differs, one line a field. `summary` and `extends` only describe: two equal recipes may
    say it differently.

    >>> differences(load("chat-attention"), load("chat-attention", ["seed=2"]))
    ['seed: 1 -> 2']
    """
    left, right = (dict(_leaves(recipe.to_json())) for recipe in (a, b))
    return [
        f"{key}: {shown(left.get(key))} -> {shown(right.get(key))}"
        for key in left | right
        if key not in ("summary", "extends") and left.get(key) != right.get(key)
    ]


def is_whole(recipe: Recipe, key: str) -> bool:
    """Whether the field `section.name` takes whole numbers only.

    >>> is_whole(load("chat-attention"), "encoder.width"), is_whole(load("chat-attention"), "train.learning_rate")
    (True, False)
    """
    section, _, name = key.rpartition(".")
    kind = getattr(getattr(recipe, section), "kind", "") if section else ""
    schema = schema_of((section, name) if section else (name,), kind)
    kinds = {option.get("type") for option in schema.get("anyOf", [schema])}
    return "integer" in kinds and "number" not in kinds


def _toml(name_or_path: str | Path) -> dict[str, Any]:
    try:
        return tomllib.loads(text(name_or_path))
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        cause = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise RecipeError(f"not TOML: {cause}", where=name_or_path) from None


def _base(child: str | Path, name: str) -> dict[str, Any]:
    beside = resolve_file(child).parent / name
    try:
        base = _toml(beside if name.endswith(".toml") else name)
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


def _leaves(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
