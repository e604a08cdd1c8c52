"""A whole recipe: which parts go together, what a mistake is answered with, and overrides."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, Self, get_args

from pydantic import ValidationError, model_validator

from regard.errors import RecipeError, did_you_mean
from regard.recipe import renamed
from regard.recipe.data import Captions, Data, Pictures, Sounds
from regard.recipe.fields import LARGEST, Section, Seed, Text, allowed, shown
from regard.recipe.learning import Search, Train
from regard.recipe.parts import (
    Decoder,
    DecoderClassifier,
    Encoder,
    EncoderBlank,
    EncoderIdentity,
    EncoderTransformer,
    Source,
    SourceConvolutions,
    SourcePatches,
    SourceResidual,
    SourceSound,
    SourceTokens,
    Tokenizer,
    TokenizerLabels,
    TokenizerWords,
)

READS = {  # the kinds of data each task can learn from
    "chat": ("chatterbot", "pairs", "cornell"),
    "translate": ("made-translation", "parallel", "pairs"),
    "classify": ("digits", "pictures", "medmnist", "reviews", "labelled"),
    "speech": ("spoken", "ljspeech", "fsdd", "sounds"),
    "caption": ("drawn", "flickr8k", "coco", "captioned"),
    "blank": ("chatterbot", "reviews", "text"),
}
SCORED = {  # the scores that can choose its best weights
    "chat": ("perplexity", "chrf"),
    "translate": ("perplexity", "bleu", "chrf", "exact"),
    "classify": ("perplexity", "accuracy", "f1"),
    "speech": ("perplexity", "cer", "wer", "exact"),
    "caption": ("perplexity", "bleu_4", "chrf", "exact"),
    "blank": ("perplexity", "accuracy"),
}
LABEL_TASKS = ("classify", "blank")  # the tasks whose answer is a label


class Recipe(Section):
    """A whole recipe with every value in place: the derived ones too, so that a saved one means
    the same for ever."""

    summary: str = ""
    """What the recipe is, in a sentence."""
    extends: Text | None = None
    """A shipped recipe, or a .toml file beside this one, whose fields hold where this one has
    none. One level only. A section of another `kind` replaces the whole section."""
    task: Literal["chat", "translate", "classify", "speech", "caption", "blank"]
    """What the model is for."""
    seed: Seed = 1
    """Decides every random draw: the first weights, the order of the batches, dropout."""
    data: Data
    """What the model learns from."""
    tokenizer: Tokenizer
    """How text becomes numbers."""
    source: Source = SourceTokens(kind="tokens")
    """What the encoder is given."""
    encoder: Encoder
    """What reads."""
    decoder: Decoder
    """What answers."""
    train: Train
    """How it learns."""
    search: Search = Search()
    """How answers are found."""

    @model_validator(mode="before")
    @classmethod
    def _same_width(cls, tree: Any) -> Any:
        """A decoder that names no width has its encoder's (if that is one: a mistake is not
        copied)."""
        match tree:
            case {"encoder": {"width": width}, "decoder": dict(decoder)} if "width" not in decoder:
                if (
                    type(width) is int
                    and 0 < width <= LARGEST
                    and decoder.get("kind") != "classifier"
                ):
                    return tree | {"decoder": decoder | {"width": width}}
        return tree

    @model_validator(mode="before")
    @classmethod
    def _text_unless_said(cls, tree: Any) -> Any:
        match tree:
            case {"source": dict(source)} if "kind" not in source:
                return tree | {"source": {"kind": "tokens"} | source}
        return tree

    @model_validator(mode="after")
    def _parts_fit(self) -> Self:
        problems = [*self._wrong_kinds()]
        e, d = self.encoder, self.decoder
        if (
            not isinstance(d, DecoderClassifier)
            and not isinstance(e, EncoderIdentity)
            and d.shared
            and d.width != e.width
        ):
            problems.append(
                f"decoder.shared: one embedding needs equal widths; got encoder.width = {e.width}, "
                f"decoder.width = {d.width}"
            )
        if (
            not isinstance(d, DecoderClassifier)
            and d.shared
            and not isinstance(self.source, SourceTokens)
        ):
            problems.append(
                f'decoder.shared: a source of kind "{self.source.kind}" has no embedding to share'
            )
        if isinstance(d, DecoderClassifier) and d.tied and self.task != "blank":
            problems.append(
                "decoder.tied: a label is no word of the source; got true; only blanks can be tied"
            )
        if isinstance(d, DecoderClassifier):
            problems += self._wrong_to_search()
        if self.train.ctc_weight:
            problems += self._wrong_to_align()
        empty = self.source.prompt_dropout if isinstance(self.source, SourceTokens) else 0
        if self.search.mmi_weight > 0 and empty == 0:
            problems.append(
                "search.mmi_weight: the model must learn answers without prompts; "
                f"got anti_prior = {self.search.mmi_weight} with source.prompt_dropout = 0; set source.prompt_dropout, 0.1 for example"
            )
        if self.train.score is not None and self.train.score not in SCORED[self.task]:
            problems.append(
                f'train.score: no score of task "{self.task}"; got "{self.train.score}"; '
                f"known: {', '.join(SCORED[self.task])}"
            )
        if problems:
            raise ValueError("\n".join(problems))
        return self

    def _wrong_to_search(self) -> Iterator[str]:
        """What a label, which is one token and has no prior, cannot obey."""
        if self.search.min_new_tokens > 1:
            yield f"search.min_new_tokens: a label is one token; got {self.search.min_new_tokens}"
        if self.search.mmi_weight > 0:
            yield f"search.mmi_weight: a label has no prior to subtract; got {self.search.mmi_weight}; set it to 0"

    def _wrong_kinds(self) -> Iterator[str]:
        """Sections whose kinds do not go together."""
        if self.data.kind not in READS[self.task]:
            yield f'data.kind: not for task "{self.task}"; got "{self.data.kind}"; known: {", ".join(READS[self.task])}'
            return  # what the others need follows from it
        labels, pictures = self.task in LABEL_TASKS, isinstance(self.data, Pictures | Captions)
        if labels != isinstance(self.decoder, DecoderClassifier):
            wanted = (
                '"classifier"'
                if labels
                else '"recurrent", "recurrent-cross-attention" or "transformer"'
            )
            yield f'decoder.kind: task "{self.task}" needs {wanted}; got "{self.decoder.kind}"'
        kinds = (SourceConvolutions, SourceResidual, SourcePatches) if pictures else (SourceTokens,)
        kinds = (SourceSound,) if isinstance(self.data, Sounds) else kinds
        if not isinstance(self.source, kinds):
            wanted = " or ".join(
                f'"{get_args(kind.model_fields["kind"].annotation)[0]}"' for kind in kinds
            )
            yield f'source.kind: data of kind "{self.data.kind}" needs {wanted}; got "{self.source.kind}"'
        if isinstance(self.data, Pictures) != isinstance(self.tokenizer, TokenizerLabels):
            wanted = (
                '"labels"' if isinstance(self.data, Pictures) else '"words", "characters" or "bpe"'
            )
            yield f'tokenizer.kind: data of kind "{self.data.kind}" needs {wanted}; got "{self.tokenizer.kind}"'
        if isinstance(self.encoder, EncoderIdentity) and not pictures:
            yield 'encoder.kind: "identity" is for pictures, which have a fixed number of places; got others'
        if pictures and isinstance(self.encoder, EncoderTransformer):
            e = self.encoder
            if e.positions == "rotary" and e.head_width % 4:
                yield (
                    "encoder.head_width: rotary positions of a picture turn pairs along two axes, so it must be a "
                    f"multiple of 4; got {e.head_width}"
                )
        if self.task == "blank":
            yield from self._wrong_for_blanks()

    def _wrong_to_align(self) -> Iterator[str]:
        """Sounds are spelled by the decoder's own output, letter by letter."""
        if not isinstance(self.data, Sounds):
            yield f"train.ctc_weight: only sounds can be spelled; got task = {self.task}"
            return
        e, d = self.encoder, self.decoder
        if (
            not isinstance(e, EncoderIdentity)
            and not isinstance(d, DecoderClassifier)
            and e.width != d.width
        ):
            yield (
                "train.ctc_weight: needs a decoder as wide as the encoder; "
                f"got encoder.width = {e.width}, decoder.width = {d.width}"
            )
        if self.data.count_padding:
            yield "train.ctc_weight: padding cannot be spelled; got data.count_padding = true"

    def _wrong_for_blanks(self) -> Iterator[str]:
        if not isinstance(self.encoder, EncoderBlank | EncoderTransformer):
            yield f'encoder.kind: task "blank" needs "blank" or "transformer"; got "{self.encoder.kind}"'
        if not isinstance(self.tokenizer, TokenizerWords):
            yield f'tokenizer.kind: a blank is a word, so task "blank" needs "words"; got "{self.tokenizer.kind}"'
        if isinstance(self.source, SourceTokens) and (
            self.source.plain or self.source.prompt_dropout
        ):
            yield (
                'source: task "blank" reads sentences as they are written, with plain = false and empty = 0; '
                f"got plain = {str(self.source.plain).lower()}, empty = {self.source.prompt_dropout}"
            )

    def to_json(self) -> dict[str, Any]:
        """Every value, as a run keeps it."""
        return self.model_dump(mode="json")

    @classmethod
    def from_json(cls, tree: Mapping[str, Any], where: object = "recipe.json") -> Recipe:
        if not isinstance(tree, Mapping):
            raise RecipeError("not a recipe", where=where, got=type(tree).__name__)
        return validated(tree, str(where), {})

    def override(self, overrides: Sequence[str]) -> Recipe:
        """This recipe with some values changed, `["search.num_beams=4"]`. Values derived before
        stay as they are."""
        changes = read_overrides(overrides)
        return validated(merged(self.to_json(), changes, carry=True), "recipe", {"--set": changes})

    def replaced(self, changes: Mapping[str, Any], where: str = "recipe") -> Recipe:
        """The same with values as they are, `{"search": {"num_beams": 4}}`; `where` begins an
        error."""
        return validated(merged(self.to_json(), changes, carry=True), where, {})


# ---------------------------------------------------------------------------------------- overrides


def read_overrides(overrides: Sequence[str]) -> dict[str, Any]:
    """`["a.b=1"]` -> `{"a": {"b": 1}}`. A value is TOML, or else a bare string; no value at all
    (None): the default."""
    tree: dict[str, Any] = {}
    for override in overrides:
        path, equals, value = (part.strip() for part in override.partition("="))
        keys = path.split(".")
        if not equals or not all(keys):
            raise RecipeError(
                "an override has the form section.field=value", where="--set", got=f'"{override}"'
            )
        inner = tree
        for key in keys[:-1]:
            inner = inner.setdefault(key, {})
            if not isinstance(inner, dict):
                raise RecipeError(
                    f"{key} is given both a value and fields", where="--set", got=f'"{override}"'
                )
        inner[keys[-1]] = read_value(value)
    return tree


def read_value(written: str) -> Any:
    """What stands behind the = of an override: TOML, or else a bare string; nothing at all: None.

    >>> read_value("[4, 8]"), read_value("gru"), read_value("")
    ([4, 8], 'gru', None)
    """
    if not written:
        return None
    try:
        parsed = tomllib.loads(f"value = {written}")
    except (tomllib.TOMLDecodeError, RecursionError):
        return written
    plain = list(parsed) == ["value"] and isinstance(
        parsed["value"], str | int | float | list | dict
    )
    return (
        parsed["value"] if plain else written
    )  # dates, and lines smuggled in after the value, are text


def merged(base: Mapping[str, Any], changes: Mapping[str, Any], *, carry: bool) -> dict[str, Any]:
    """`base` with `changes`. Where the kind of a section changes, `carry` keeps the fields that
    both kinds have."""
    tree = dict(base)
    for key, change in changes.items():
        old = tree.get(key)
        if isinstance(change, dict) and isinstance(old, dict):
            kind = change.get("kind")
            if kind is not None and old.get("kind", kind) != kind:
                old = {
                    name: value
                    for name, value in old.items()
                    if carry and name in _fields(key, kind)
                }
            change = {name: value for name, value in (old | change).items() if value is not None}
        if change is None:
            tree.pop(key, None)
        else:
            tree[key] = change
    return tree


# ------------------------------------------------------------------------------------------- errors


def _sections() -> dict[str, dict[str, type[Section]]]:
    """{"encoder": {"recurrent": EncoderRecurrent, …}, "train": {"": Train}, …}; a section
    without kinds has one, ""."""
    found: dict[str, dict[str, type[Section]]] = {}
    for name, field in Recipe.model_fields.items():
        for model in get_args(field.annotation) or (field.annotation,):
            if isinstance(model, type) and issubclass(model, Section):
                kind = model.model_fields.get("kind")
                found.setdefault(name, {})[get_args(kind.annotation)[0] if kind else ""] = model
    return found


SECTIONS = _sections()


def _fields(section: str, kind: Any) -> list[str]:
    model = SECTIONS.get(section, {}).get(kind) if isinstance(kind, str) else None
    return list(model.model_fields) if model else []


def validated(
    tree: Mapping[str, Any], where: str, layers: Mapping[str, Mapping[str, Any]]
) -> Recipe:
    """The recipe, or one error that lists all that is wrong, with the layer that said it: --set,
    the file, its base."""
    try:
        return Recipe.model_validate(tree)
    except ValidationError as error:
        found = [
            problem for item in error.errors(include_url=False) for problem in _problems(item, tree)
        ]
    problems = list(
        dict.fromkeys(f"{_origin(place, layers) or where}: {said}" for place, said in found)
    )
    if len(problems) == 1:
        raise RecipeError(problems[0])
    raise RecipeError(f"{where}: {len(problems)} things to mend", details=problems)


def _problems(item: Any, tree: Mapping[str, Any]) -> Iterator[tuple[tuple[str, ...], str]]:
    """What pydantic found, as (place, sentence): where it stands, what is wrong, what was
    received, what is allowed."""
    kind, place = _placed(item["loc"])
    hint = None
    match item["type"]:
        case "default_factory_not_called":
            return  # a derived value, missing only because what it derives from is wrong
        case "value_error" if place:  # from a section's own validator
            yield place, f"{place[0]}: {item['ctx']['error']}"
            return
        case "value_error":  # from the recipe's own, which names the places itself
            for line in str(item["ctx"]["error"]).split("\n"):
                yield tuple(line.split(":")[0].split(".")), line
            return
        case "extra_forbidden":
            section = len(place) == 1 and isinstance(tree[place[0]], dict)
            what, hint = "no such section" if section else "no such field", _unknown(place, kind)
        case "union_tag_invalid" | "union_tag_not_found":
            place = (*place, "kind")
            got = _at(tree, place)
            what = "missing" if got is None else "no such kind"
            new = renamed.KINDS.get(place[0], {}).get(str(got))
            hint = did_you_mean(new or str(got or ""), SECTIONS[place[0]])
        case "missing" if place[0] in SECTIONS and len(place) == 1:
            what = f"the section [{place[0]}] is missing"
        case "missing" if _at(tree, place) is None:
            what, hint = "missing", f"must be {allowed(schema_of(place, kind))}"
        case _ if place[0] in SECTIONS and len(place) == 1:
            what = f"must be a section, [{place[0]}]"
        case _:
            what = f"must be {allowed(schema_of(place, kind))}"
    got = _at(tree, place)
    yield (
        place,
        str(
            RecipeError(
                what, where=".".join(place), got=None if got is None else shown(got), hint=hint
            )
        ),
    )


def _placed(loc: tuple[int | str, ...]) -> tuple[str, tuple[str, ...]]:
    """("encoder", "recurrent", "width") -> kind "recurrent", place ("encoder", "width")."""
    parts = [str(part) for part in loc]
    kinds = list(SECTIONS.get(parts[0], {})) if parts else []
    kind = parts.pop(1) if len(kinds) > 1 and len(parts) > 1 else "".join(kinds[:1])
    return kind, tuple(
        parts[:2] if kinds else parts[:1]
    )  # what is wrong inside a list is shown as the whole list


def _at(tree: Mapping[str, Any], place: tuple[str, ...]) -> Any:
    """The value at a place, None if there is none."""
    value: Any = tree
    for key in place:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def _origin(place: tuple[str, ...], layers: Mapping[str, Mapping[str, Any]]) -> str | None:
    return next((name for name, layer in layers.items() if _at(layer, place) is not None), None)


def _unknown(place: tuple[str, ...], kind: str) -> str | None:
    """What an old name is called now, where a field would be at home, or the name nearest to it."""
    if len(place) == 1:
        new = renamed.SECTIONS.get(place[0])
        return did_you_mean(new or place[0], Recipe.model_fields)
    section, field = place
    new = renamed.FIELDS.get(section, {}).get(field)
    if new in _fields(section, kind):
        return f'did you mean "{new}"?'
    if others := [f'"{other}"' for other in SECTIONS[section] if field in _fields(section, other)]:
        return f'kind "{kind}" has none, {" and ".join(others)} has'
    if homes := [
        f"[{other}]"
        for other in SECTIONS
        if any(field in _fields(other, k) for k in SECTIONS[other])
    ]:
        return f"it belongs in {' or '.join(homes)}"
    return did_you_mean(field, _fields(section, kind))


def schema_of(place: tuple[str, ...], kind: str) -> dict[str, Any]:
    *section, field = place
    model = SECTIONS[section[0]][kind] if section else Recipe
    return model.model_json_schema()["properties"][field]
