"""docs/recipes.md, made of the sentences under the fields."""

from __future__ import annotations

from collections.abc import Sequence

from regard.recipe.fields import Section, allowed, shown
from regard.recipe.whole import SECTIONS, Recipe


def _table(model: type[Section], fields: Sequence[str]) -> str:
    schema = model.model_json_schema()
    rows = ["| field | value | default | |", "|---|---|---|---|"]
    for name in fields:
        field = schema["properties"][name]
        default = "needed" if name in schema.get("required", ()) else "derived"
        if "default" in field:
            default = "none" if field["default"] is None else f"`{shown(field['default'])}`"
        sentence = " ".join(field["description"].split())
        rows.append(f"| `{name}` | {allowed(field)} | {default} | {sentence} |")
    return "\n".join(rows)


def document() -> str:
    """docs/recipes.md, from the sentences under the fields."""
    top = [name for name in Recipe.model_fields if name not in SECTIONS]
    parts = [HEADER, _table(Recipe, top)]
    for section, kinds in SECTIONS.items():
        parts.append(f"## [{section}]\n\n{Recipe.model_fields[section].description}")
        described = {kind: model.model_json_schema()["properties"] for kind, model in kinds.items()}
        first = next(iter(described))
        common = [
            name
            for name, field in described[first].items()
            if len(kinds) > 1 and all(other.get(name) == field for other in described.values())
        ]
        if common:
            parts.append(f"Every kind:\n\n{_table(kinds[first], common)}")
        for kind, model in kinds.items():
            own = [name for name in described[kind] if name != "kind" and name not in common]
            parts.append(f'### kind = "{kind}"\n\n{model.__doc__}' if kind else str(model.__doc__))
            parts.extend([_table(model, own)] if own else [])
    return "\n\n".join(parts) + "\n"


HEADER = """# Recipes

Made by `python -m regard.recipe` from the fields in regard/recipe/; do not edit by hand.

A recipe is a TOML file that decides everything about a run: top-level fields, then one section a noun. `kind` chooses
which fields a section has. `regard recipes list` shows the shipped ones, `regard recipes copy chat-attention mine.toml`
starts your own, `regard recipes check mine.toml` says everything that is wrong with it at once. A variant is a base and
a few lines:

    extends = "chat-attention"
    summary = "The same with additive attention."
    [decoder]
    attention = "additive"

On the command line, `--set decoder.attention=additive` does the same; `--set train.steps=` (no value) goes back to the
default. A changed `kind` keeps the fields that both kinds have. Values marked *derived* follow from others, and
every run keeps the recipe with all values in place (`recipe.json`)."""
