"""The whole recipe: checks across its sections, overrides, and error messages."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import ValidationError, model_validator

from regard.data.kinds.mixture import DataMixture
from regard.errors import RecipeError, did_you_mean
from regard.fields import LARGEST, Section, Seed, Text, allowed, shown
from regard.marks import Mark
from regard.recipe import renamed
from regard.recipe.data import READS, Captions, Data, Pictures, Sounds
from regard.recipe.learning import Train
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
    TokenizerBPE,
    TokenizerLabels,
    TokenizerWords,
)
from regard.search.options import Options

SCORED = {  # the validation scores that can select the best weights of each task
    "chat": ("perplexity", "chrf"),
    "translate": ("perplexity", "bleu", "chrf", "exact"),
    "classify": ("perplexity", "accuracy", "f1"),
    "speech": ("perplexity", "cer", "wer", "exact"),
    "caption": ("perplexity", "bleu_4", "chrf", "exact"),
    "blank": ("perplexity", "accuracy"),
}
SMALLEST_WITH_TURNS = 262  # the bytes, the special tokens and the turn tokens
LABEL_TASKS = ("classify", "blank")  # the tasks whose answer is a label


class Recipe(Section):
    """A complete recipe. Derived values are filled in too, so a saved recipe does not depend on
    later defaults."""

    summary: Annotated[str, Mark.FREE] = ""
    """One sentence that describes the recipe."""
    extends: Annotated[Text, Mark.FREE] | None = None
    """The base: a shipped recipe, or a .toml file next to this one, that supplies every field not
    set here. A base cannot extend another recipe. A section with another `kind` replaces the
    base's section completely."""
    task: Annotated[
        Literal["chat", "translate", "classify", "speech", "caption", "blank"],
        Mark.WEIGHTS,
        Mark.VOCABULARY,
    ]
    """The task the model is trained for."""
    seed: Annotated[Seed, Mark.BATCHES, Mark.TRAINING, Mark.FREE] = 1
    """Seed of all random numbers: initial weights, order of the batches, dropout."""
    data: Annotated[Data, Mark.VOCABULARY, Mark.FREE]
    """The training, validation and test data."""
    tokenizer: Annotated[Tokenizer, Mark.WEIGHTS, Mark.VOCABULARY]
    """How text is split into tokens."""
    source: Annotated[Source, Mark.WEIGHTS] = SourceTokens(kind="tokens")
    """The input of the encoder, and the frontend that computes it."""
    encoder: Annotated[Encoder, Mark.WEIGHTS]
    """The encoder, which turns the source into the memory."""
    decoder: Annotated[Decoder, Mark.WEIGHTS]
    """The decoder, which generates the answer from the memory."""
    train: Annotated[Train, Mark.TRAINING, Mark.FREE]
    """Optimisation: budget, batches, learning rate, regularisation, validation."""
    search: Annotated[Options, Mark.SEARCH, Mark.FREE] = Options()
    """Decoding: greedy, beam search or sampling, and re-ranking."""

    @model_validator(mode="before")
    @classmethod
    def _same_width(cls, tree: Any) -> Any:
        """Give the decoder its encoder's width if it has none. An invalid width is not copied, so
        that it is reported once."""
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
    def _tokens_by_default(cls, tree: Any) -> Any:
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
                'decoder.tied: a label is no word of the source; got true; only for task "blank"'
            )
        if isinstance(d, DecoderClassifier):
            problems += self._wrong_search_for_labels()
        if self.train.ctc_weight:
            problems += self._wrong_for_ctc()
        if self.train.contrastive_weight and self.task not in ("chat", "translate"):
            problems.append(
                f"train.contrastive_weight: for chat and translation only; got task = {self.task}"
            )

        if self.train.unlikelihood_weight and isinstance(d, DecoderClassifier):
            problems.append(
                "train.unlikelihood_weight: a label has no earlier tokens; "
                f"got {self.train.unlikelihood_weight} for task = {self.task}"
            )

        source = self.source
        prompt_dropout = source.prompt_dropout if isinstance(source, SourceTokens) else 0
        if self.search.mmi_weight > 0 and prompt_dropout == 0:
            problems.append(
                "search.mmi_weight: the model must learn answers without prompts; "
                f"got mmi_weight = {self.search.mmi_weight} with source.prompt_dropout = 0; "
                "set source.prompt_dropout, 0.1 for example"
            )
        if self.search.retrieved and self.task not in ("chat", "translate"):
            problems.append(
                "search.retrieved: for chat and translation only; "
                f"got {self.search.retrieved} for task = {self.task}; set it to 0"
            )
        if (
            self.data.history > 1
            and isinstance(self.tokenizer, TokenizerBPE)
            and self.tokenizer.size < SMALLEST_WITH_TURNS
        ):
            problems.append(
                "tokenizer.size: data.turns needs two more special tokens; "
                f"got {self.tokenizer.size}; must be {SMALLEST_WITH_TURNS} or more"
            )
        if self.train.score is not None and self.train.score not in SCORED[self.task]:
            problems.append(
                f'train.score: no score of task "{self.task}"; got "{self.train.score}"; '
                f"known: {', '.join(SCORED[self.task])}"
            )
        if problems:
            raise ValueError("\n".join(problems))
        return self

    def _wrong_search_for_labels(self) -> Iterator[str]:
        """Search options that a label, which is one token and has no prior, cannot have."""
        if self.search.min_new_tokens > 1:
            yield f"search.min_new_tokens: a label is one token; got {self.search.min_new_tokens}"
        if self.search.mmi_weight > 0:
            yield (
                "search.mmi_weight: a label has no prior to subtract; "
                f"got {self.search.mmi_weight}; set it to 0"
            )

    def _wrong_kinds(self) -> Iterator[str]:
        """Sections whose kinds do not go together."""
        if self.data.kind not in READS[self.task]:
            known = ", ".join(READS[self.task])
            yield f'data.kind: not for task "{self.task}"; got "{self.data.kind}"; known: {known}'
            return  # the checks below would only repeat it
        if isinstance(self.data, DataMixture):
            for i, (section, _) in enumerate(self.data.data_sets):
                if section.kind not in READS[self.task]:
                    yield (
                        f'data.sources.{i}.kind: not for task "{self.task}"; got "{section.kind}"'
                    )

        labels = self.task in LABEL_TASKS
        pictures = isinstance(self.data, Pictures | Captions)
        if labels != isinstance(self.decoder, DecoderClassifier):
            wanted = (
                '"classifier"'
                if labels
                else '"recurrent", "recurrent-cross-attention" or "transformer"'
            )
            yield f'decoder.kind: task "{self.task}" needs {wanted}; got "{self.decoder.kind}"'

        kinds: tuple[type[Section], ...] = (SourceTokens,)
        if pictures:
            kinds = (SourceConvolutions, SourceResidual, SourcePatches)
        if isinstance(self.data, Sounds):
            kinds = (SourceSound,)
        if not isinstance(self.source, kinds):
            wanted = " or ".join(
                f'"{get_args(kind.model_fields["kind"].annotation)[0]}"' for kind in kinds
            )
            yield (
                f'source.kind: data of kind "{self.data.kind}" needs {wanted}; '
                f'got "{self.source.kind}"'
            )

        if isinstance(self.data, Pictures) != isinstance(self.tokenizer, TokenizerLabels):
            wanted = (
                '"labels"' if isinstance(self.data, Pictures) else '"words", "characters" or "bpe"'
            )
            yield (
                f'tokenizer.kind: data of kind "{self.data.kind}" needs {wanted}; '
                f'got "{self.tokenizer.kind}"'
            )

        if isinstance(self.encoder, EncoderIdentity) and not pictures:
            yield (
                'encoder.kind: "identity" is for pictures, which have a fixed number of places; '
                f'got data of kind "{self.data.kind}"'
            )
        if pictures and isinstance(self.encoder, EncoderTransformer):
            e = self.encoder
            if e.positions == "rotary" and e.head_width % 4:
                yield (
                    "encoder.head_width: rotary positions of a picture rotate pairs along two "
                    f"axes, so it must be a multiple of 4; got {e.head_width}"
                )
        if self.task == "blank":
            yield from self._wrong_for_blanks()

    def _wrong_for_ctc(self) -> Iterator[str]:
        """The CTC loss scores the memory with the decoder's own output layer."""
        if not isinstance(self.data, Sounds):
            yield f"train.ctc_weight: CTC is for speech only; got task = {self.task}"
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
            yield "train.ctc_weight: CTC cannot predict padding; got data.count_padding = true"

    def _wrong_for_blanks(self) -> Iterator[str]:
        if not isinstance(self.encoder, EncoderBlank | EncoderTransformer):
            yield (
                'encoder.kind: task "blank" needs "blank" or "transformer"; '
                f'got "{self.encoder.kind}"'
            )
        if not isinstance(self.tokenizer, TokenizerWords):
            yield (
                'tokenizer.kind: a blank is a word, so task "blank" needs "words"; '
                f'got "{self.tokenizer.kind}"'
            )
        if isinstance(self.source, SourceTokens) and (
            self.source.plain or self.source.prompt_dropout
        ):
            yield (
                'source: task "blank" needs plain = false and prompt_dropout = 0; '
                f"got plain = {str(self.source.plain).lower()}, "
                f"prompt_dropout = {self.source.prompt_dropout}"
            )

    def to_json(self) -> dict[str, Any]:
        """Every value, as saved in a run's recipe.json."""
        return self.model_dump(mode="json")

    @classmethod
    def from_json(cls, tree: Mapping[str, Any], where: object = "recipe.json") -> Recipe:
        if not isinstance(tree, Mapping):
            raise RecipeError("not a recipe", where=where, got=type(tree).__name__)
        return validated(tree, str(where), {})

    def override(self, overrides: Sequence[str]) -> Recipe:
        """A copy with some values changed, `["search.num_beams=4"]`. Derived values are kept, not
        derived again."""
        changes = read_overrides(overrides)
        return validated(merged(self.to_json(), changes, carry=True), "recipe", {"--set": changes})

    def replaced(self, changes: Mapping[str, Any], where: str = "recipe") -> Recipe:
        """A copy with some values changed, `{"search": {"num_beams": 4}}`. `where` is the prefix of
        an error message."""
        return validated(merged(self.to_json(), changes, carry=True), where, {})


# ---------------------------------------------------------------------------------------- overrides


def read_overrides(overrides: Sequence[str]) -> dict[str, Any]:
    """`["a.b=1"]` -> `{"a": {"b": 1}}`. A value is TOML, or else a bare string; an empty value is
    None and restores the default."""
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


def read_value(value: str) -> Any:
    """Parse the value of an override: TOML, or else a bare string. An empty value is None.

    >>> read_value("[4, 8]"), read_value("gru"), read_value("")
    ([4, 8], 'gru', None)
    """
    if not value:
        return None
    try:
        parsed = tomllib.loads(f"value = {value}")
    except (tomllib.TOMLDecodeError, RecursionError):
        return value

    # Dates stay text, and so does a value with further lines of TOML after it.
    if list(parsed) != ["value"]:
        return value
    if not isinstance(parsed["value"], str | int | float | list | dict):
        return value
    return parsed["value"]


def merged(base: Mapping[str, Any], changes: Mapping[str, Any], *, carry: bool) -> dict[str, Any]:
    """`base` with `changes`. If the kind of a section changes, `carry` keeps the fields that both
    kinds have."""
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
            items = {
                name: _merged_items(old[name], value, f"{key}.{name}")
                for name, value in change.items()
                if isinstance(value, dict) and isinstance(old.get(name), list)
            }
            fields = old | change | items
            change = {name: value for name, value in fields.items() if value is not None}
        if change is None:
            tree.pop(key, None)
        else:
            tree[key] = change
    return tree


def _merged_items(items: list[Any], changes: Mapping[str, Any], where: str) -> list[Any]:
    """A list of tables with changes to some of them, `{"0": {"share": 0.3}}`."""
    merged_items = list(items)
    for number, change in changes.items():
        is_item = number.isdecimal() and int(number) < len(items)
        if not is_item or not isinstance(change, dict) or not isinstance(items[int(number)], dict):
            raise RecipeError(
                f"no such item; there are {len(items)}, from {where}.0",
                where=f"{where}.{number}",
                got=shown(change),
                hint=f"as in --set {where}.0.FIELD=VALUE",
            )
        fields = items[int(number)] | change
        merged_items[int(number)] = {k: value for k, value in fields.items() if value is not None}
    return merged_items


# ------------------------------------------------------------------------------------------- errors


def _sections() -> dict[str, dict[str, type[Section]]]:
    """{"encoder": {"recurrent": EncoderRecurrent, …}, "train": {"": Train}, …}; a section
    without kinds has the one kind ""."""
    sections: dict[str, dict[str, type[Section]]] = {}
    for name, field in Recipe.model_fields.items():
        for model in get_args(field.annotation) or (field.annotation,):
            if isinstance(model, type) and issubclass(model, Section):
                kind = model.model_fields.get("kind")
                kind_name = get_args(kind.annotation)[0] if kind else ""
                sections.setdefault(name, {})[kind_name] = model
    return sections


SECTIONS = _sections()


def _fields(section: str, kind: Any) -> list[str]:
    model = SECTIONS.get(section, {}).get(kind) if isinstance(kind, str) else None
    return list(model.model_fields) if model else []


def validated(
    tree: Mapping[str, Any], where: str, layers: Mapping[str, Mapping[str, Any]]
) -> Recipe:
    """The recipe, or one error that lists every problem, each with the layer that set the value:
    --set, the file, or its base."""
    try:
        return Recipe.model_validate(tree)
    except ValidationError as error:
        items = error.errors(include_url=False)

    problems: dict[str, None] = {}  # a set that keeps its order
    for item in items:
        for place, sentence in _problems(item, tree):
            problems[f"{_origin(place, layers) or where}: {sentence}"] = None
    if len(problems) == 1:
        raise RecipeError(*problems)
    raise RecipeError(f"{where}: {len(problems)} things to fix", details=problems)


def _problems(item: Any, tree: Mapping[str, Any]) -> Iterator[tuple[tuple[str, ...], str]]:
    """An error of pydantic as (place, sentence): where it is, what is wrong, what was received,
    what is allowed."""
    kind, place = _kind_and_place(item["loc"])
    hint = None
    match item["type"]:
        case "default_factory_not_called":
            return  # a derived value is missing only if the value it derives from is wrong
        case "value_error" if place:  # from a section's own validator
            yield place, f"{place[0]}: {item['ctx']['error']}"
            return
        case "value_error":  # from the recipe's own validator, which names the places itself
            for line in str(item["ctx"]["error"]).split("\n"):
                yield tuple(line.split(":")[0].split(".")), line
            return
        case "extra_forbidden":
            section = len(place) == 1 and isinstance(tree[place[0]], dict)
            what = "no such section" if section else "no such field"
            hint = _unknown(place, kind)
        case "union_tag_invalid" | "union_tag_not_found":
            place = (*place, "kind")
            got = _at(tree, place)
            what = "missing" if got is None else "no such kind"
            new = renamed.KINDS.get(place[0], {}).get(str(got))
            hint = did_you_mean(new or str(got or ""), SECTIONS[place[0]])
        case "missing" if place[0] in SECTIONS and len(place) == 1:
            what = f"the section [{place[0]}] is missing"
        case "missing" if _at(tree, place) is None:
            what = "missing"
            hint = f"must be {allowed(schema_of(place, kind))}"
        case _ if place[0] in SECTIONS and len(place) == 1:
            what = f"must be a section, [{place[0]}]"
        case _:
            what = f"must be {allowed(schema_of(place, kind))}"
    value = _at(tree, place)
    got = None if value is None else shown(value)
    yield place, str(RecipeError(what, where=".".join(place), got=got, hint=hint))


def _kind_and_place(loc: tuple[int | str, ...]) -> tuple[str, tuple[str, ...]]:
    """("encoder", "recurrent", "width") -> kind "recurrent", place ("encoder", "width")."""
    parts = [str(part) for part in loc]
    kinds = list(SECTIONS.get(parts[0], {})) if parts else []
    kind = parts.pop(1) if len(kinds) > 1 and len(parts) > 1 else "".join(kinds[:1])
    depth = 2 if kinds else 1  # a wrong item of a list is reported as the whole list
    return kind, tuple(parts[:depth])


def _at(tree: Mapping[str, Any], place: tuple[str, ...]) -> Any:
    """The value at a place, or None."""
    value: Any = tree
    for key in place:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def _origin(place: tuple[str, ...], layers: Mapping[str, Mapping[str, Any]]) -> str | None:
    """The layer that sets the value at a place."""
    return next((name for name, layer in layers.items() if _at(layer, place) is not None), None)


def _unknown(place: tuple[str, ...], kind: str) -> str | None:
    """A hint for an unknown name: its new name, the kinds or sections that have it, or the nearest
    name."""
    if len(place) == 1:
        new = renamed.SECTIONS.get(place[0])
        return did_you_mean(new or place[0], Recipe.model_fields)

    section, field = place
    if new := renamed.FIELDS.get(section, {}).get(field):
        hint = f'did you mean "{new}"?'
        return (
            hint if new in _fields(section, kind) else f"{hint} {_kinds_with(section, new, kind)}"
        )
    if kinds := _kinds_with(section, field, kind):
        return kinds

    homes = []
    for other, kinds in SECTIONS.items():
        if any(field in _fields(other, other_kind) for other_kind in kinds):
            homes.append(f"[{other}]")
    if homes:
        return f"it belongs in {' or '.join(homes)}"
    return did_you_mean(field, _fields(section, kind))


def _kinds_with(section: str, field: str, kind: str) -> str | None:
    """A hint that names the kinds of a section that have a field this kind has not."""
    kinds = [f'"{other}"' for other in SECTIONS[section] if field in _fields(section, other)]
    if not kinds:
        return None
    return f'kind "{kind}" has none, {" and ".join(kinds)} {"has" if len(kinds) == 1 else "have"}'


def schema_of(place: tuple[str, ...], kind: str) -> dict[str, Any]:
    """The JSON schema of a field."""
    *section, field = place
    model = SECTIONS[section[0]][kind] if section else Recipe
    return model.model_json_schema()["properties"][field]
