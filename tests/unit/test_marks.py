"""Marks of fields: each law holds for every field of every kind, over the shipped recipes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from itertools import islice
from typing import Any

import pytest
import torch

from regard import build, recipe
from regard.budget import lengths, of
from regard.build import corpora
from regard.errors import InputError, RecipeError
from regard.marks import own_marks
from regard.model import Model
from regard.recipe import SECTIONS, Mark, Recipe, marks_of
from regard.recipe.marked import leaves
from regard.recipe.whole import schema_of
from regard.tasks.blank import MARK

AT = lengths(2, 5, 7)
MOST = 14  # recipes that are tried for a field
KEYS = [
    f"{section}.{name}"
    for section, kinds in SECTIONS.items()
    for name in dict.fromkeys(name for kind in kinds.values() for name in kind.model_fields)
] + [name for name in Recipe.model_fields if name not in SECTIONS]
FIELDS = [key for key in KEYS if not key.endswith(".kind") and key != "task"]


def others(chosen: Recipe, key: str) -> Iterator[Recipe]:
    """The recipe with other values of one field, as far as it allows them."""
    section, _, name = key.rpartition(".")
    part: Any = getattr(chosen, section) if section else chosen
    value = getattr(part, name)
    schema = schema_of((section, name) if section else (name,), getattr(part, "kind", ""))
    for other in _values(value, schema):
        tree = {section: {name: other}} if section else {name: other}
        try:
            new = chosen.replaced(tree)
        except RecipeError:
            continue
        if new != chosen:
            yield new


def _values(value: Any, schema: dict[str, Any]) -> Iterator[Any]:
    for option in schema.get("anyOf", [schema]):
        match option:
            case {"type": "array", "items": {"type": "object"}}:  # of a mixture
                yield from (value[:1], [*value, *value], [{**item, "share": 2} for item in value])
            case {"enum": values}:
                yield from values
            case {"type": "boolean"}:
                yield not value
            case {"type": "integer"}:
                number = value or 0
                yield from (2 * number, number + 1, number - 1, 1, 3, 2048)
            case {"type": "number"}:
                yield from (0.0, 0.3, (value or 0) / 2, 2.5, 15.0)
            case {"type": "string"}:
                yield from ("abc", "x")
            case {"type": "array"}:
                yield from ([2 * item for item in value], [*value, *value[-1:]])
                yield from ([item + 1 for item in value], [item / 2 for item in value], [4], ["a"])


VARIANTS = {  # of shipped recipes: kinds of data and fields that none of them has
    "chat-attention": ["data.kind=pairs", "data.path=x"],
    "chat-gru": [
        "data.kind=dialogues",
        "data.path=x",
        "tokenizer.kind=characters",
        "tokenizer.alphabet=abc",
    ],
    "sentiment-gru": ["data.kind=labelled", "data.path=x"],
    "blank-rnn": ["data.kind=text", "data.path=x"],
    "caption-attention": ["data.kind=captioned", "data.path=x"],
    "caption-transformer": ["data.kind=coco", "data.path=x", "data.valid_path=x"],
    "image-pool": ["data.kind=pictures", "data.path=x", "decoder.hidden=[8, 8]"],
    "speech-attention": ["data.kind=sounds", "data.path=x"],
    "chat-transformer": ["encoder.positions=learned", "decoder.positions=learned"],
    "speech-transformer": ["encoder.positions=learned", "decoder.positions=learned"],
    "multi30k-attention": ["data.test_path=x", "data.test_target_path=x"],
}


@cache
def recipes() -> list[tuple[Recipe, dict[str, Any]]]:
    """The shipped recipes, one for each combination of kinds, and variants; with their values."""
    by_kinds: dict[str, Recipe] = {}
    for name in recipe.names():
        chosen = recipe.load(name)
        kinds = [key for key in dict(leaves(chosen.to_json())).items() if "kind" in key[0]]
        by_kinds.setdefault(str(kinds), chosen)
    variants = [recipe.load(name, changes) for name, changes in VARIANTS.items()]
    sources = [{"kind": "pairs", "path": "x"}, {"kind": "dialogues", "path": "y"}]
    variants.append(variants[0].replaced({"data": {"kind": "mixture", "sources": sources}}))
    return [(chosen, dict(leaves(chosen.to_json()))) for chosen in (*variants, *by_kinds.values())]


def having(key: str) -> Iterator[Recipe]:
    """Recipes with a field, the variants first."""
    key_of_items = f"{key}.0."  # of a list of tables
    chosen = [
        chosen
        for chosen, values in recipes()
        if key in values or any(name.startswith(key_of_items) for name in values)
    ]
    yield from chosen[:MOST]


@pytest.mark.parametrize("section", SECTIONS)
def test_a_field_has_the_same_marks_in_every_kind(section: str):
    marks: dict[str, set[frozenset[Mark]]] = {}
    for kind in SECTIONS[section].values():
        for name, field in kind.model_fields.items():
            marks.setdefault(name, set()).add(own_marks(field))
    assert {name: different for name, different in marks.items() if len(different) > 1} == {}


def test_every_field_outside_of_the_model_is_marked():
    """The default class: what decides the architecture, which weights fit only as it was."""
    assert [key for key in KEYS if not marks_of(key)] == []
    model = ("task", "data.turns", "tokenizer.", "source.", "encoder.", "decoder.")
    assert all(key.startswith(model) for key in KEYS if Mark.WEIGHTS in marks_of(key))
    assert not any({Mark.WEIGHTS, Mark.TRAINING} <= marks_of(key) for key in KEYS)


@pytest.mark.parametrize("key", FIELDS)
def test_a_field_that_costs_nothing_leaves_the_budget(key: str):
    """And another one can change it."""
    can_change = any(_costs_differ(chosen, key) for chosen in having(key))
    assert can_change == (Mark.FREE not in marks_of(key))


def _costs_differ(chosen: Recipe, key: str) -> bool:
    before = _cost(chosen)
    return any(before != _cost(other) for other in others(chosen, key))


def _cost(chosen: Recipe) -> Any:
    """All figures of a budget; None: its learned positions are fewer than these lengths."""
    try:
        budget = of(chosen, AT, title="")
    except InputError:
        return None
    return budget.parts, budget.bytes, budget.sizes


@pytest.mark.parametrize("key", FIELDS)
def test_a_field_that_changes_the_vocabulary_makes_another_corpus(
    key: str, monkeypatch: pytest.MonkeyPatch
):
    """And no other field does."""
    monkeypatch.setattr(corpora, "contents", lambda _: corpora.Contents(lambda tally: iter(()), []))
    prepared: list[dict[str, Any]] = []
    monkeypatch.setattr(
        corpora.cache, "prepare", lambda _, **rest: prepared.append(rest) or prepared
    )

    def corpus_of(chosen: Recipe) -> str:
        build.corpus(chosen)
        return json.dumps(prepared[-1]["key"], sort_keys=True)

    differ = set()
    for chosen in having(key):
        before = corpus_of(chosen)
        differ |= {before != corpus_of(other) for other in islice(others(chosen, key), 2)}
    assert differ == {Mark.VOCABULARY in marks_of(key)}


@pytest.mark.parametrize(
    "key", [key for key in FIELDS if Mark.TRAINING in marks_of(key) and key != "seed"]
)
def test_a_field_of_training_leaves_a_trained_model_as_it_is(key: str):
    chosen = next(chosen for chosen in having(key) if next(others(chosen, key), None))
    first, second = (
        build.model(each, vocabulary=11, source_vocabulary=13).eval()
        for each in (chosen, next(others(chosen, key)))
    )
    second.load_state_dict(first.state_dict())
    assert torch.equal(_logits(first, chosen), _logits(second, chosen))


@torch.no_grad()
def _logits(model: Model, chosen: Recipe) -> torch.Tensor:
    """Logits of two random inputs of the recipe's source."""
    draw = torch.Generator().manual_seed(1)
    match chosen.source:
        case recipe.SourceTokens():
            raw = torch.randint(4, 11, (2, 5), generator=draw)
        case recipe.SourceSound() as source:
            raw = torch.randint(-999, 999, (2, source.rate // 2), generator=draw).short()
        case source:
            raw = torch.randint(256, (2, *source.size, source.channels_in), generator=draw).byte()
    if chosen.task == "blank":
        raw[:, 2] = MARK
    places = (
        raw.shape[:2]
        if isinstance(chosen.source, recipe.SourceTokens | recipe.SourceSound)
        else (2, 1)
    )
    memory = model.encoder(model.frontend(raw, torch.ones(places, dtype=torch.bool)))
    return model.decoder(torch.ones(2, 1, dtype=torch.long), memory)
