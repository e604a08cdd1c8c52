"""Mixtures: several data sets of text at once, with one tokenizer."""

from __future__ import annotations

from itertools import chain
from typing import Annotated, Any, Literal, NamedTuple, Self

from pydantic import Strict, ValidationError, model_validator

from regard.data.kinds.conversations import DIALOGUE, TRANSLATE
from regard.data.kinds.kind import Contents, DataKind, SourceForm
from regard.data.kinds.sections import DataSection, Texts
from regard.errors import did_you_mean
from regard.fields import Turns, allowed, shown


class MixtureSource(NamedTuple):
    """A data set of a mixture, and its share of the training examples, from 0 to 1."""

    section: DataSection
    share: float | None  # None: all of its examples are used


class DataMixture(Texts):
    """Several data sets of text at once. Each `[[data.sources]]` has the fields of a section [data]
    of its kind; limits on length, shares to hold out and `turns` are given once, in [data]."""

    kind: Literal["mixture"]
    sources: Annotated[tuple[dict[str, Any], ...], Strict(False)]
    """The data sets, each with its `kind` and the fields of that kind. Either all or none of them
    have a `share` of the training examples, relative to the sum of the shares. With shares, as many
    examples are used as possible without repeating one; without shares, all are used. Validation
    and test splits are used whole."""
    turns: Turns = 1
    """Number of turns of a dialogue that the model reads; examples of other kinds are one turn."""

    @model_validator(mode="after")
    def _sources_fit(self) -> Self:
        if not self.sources:
            raise ValueError("a mixture needs one or more [[data.sources]]; got none")
        sections = [self._checked(i, fields) for i, fields in enumerate(self.sources)]
        shares = ["share" in fields for fields in self.sources]
        if any(shares) and not all(shares):
            raise ValueError(
                f"sources.{shares.index(False)}.share: missing; give a share for all sources, "
                "or for none"
            )
        # Default values are filled in, as in every section.
        sources = []
        for fields, section in zip(self.sources, sections, strict=True):
            own = section.model_dump(mode="json", exclude=set(COMMON))
            sources.append(own | ({"share": fields["share"]} if "share" in fields else {}))
        object.__setattr__(self, "sources", tuple(sources))
        return self

    def _checked(self, i: int, fields: dict[str, Any]) -> DataSection:
        """The section of a source; raises ValueError for what is wrong with it."""
        from regard.data.kinds import KINDS

        texts = [name for name, kind in KINDS.items() if _is_text(kind)]
        kind = fields.get("kind")
        if kind not in texts:
            got = "missing" if kind is None else f"no such kind of text; got {shown(kind)}"
            raise ValueError(f"sources.{i}.kind: {got}; {did_you_mean(str(kind), texts)}")
        for name in COMMON:
            if name in fields:
                raise ValueError(
                    f"sources.{i}.{name}: is given once for all sources, in [data]; "
                    f"got {shown(fields[name])}"
                )
        share = fields.get("share", 1.0)
        is_number = isinstance(share, int | float) and not isinstance(share, bool)
        if not is_number or not 0 < share < float("inf"):
            raise ValueError(f"sources.{i}.share: must be a number > 0; got {shown(share)}")
        try:
            return self._section(fields)
        except ValidationError as problem:
            # A misspelled field is missing, too: the wrong name says more.
            errors = problem.errors()
            error = next((e for e in errors if e["type"] == "extra_forbidden"), errors[0])
            raise ValueError(_sentence(f"sources.{i}", error, KINDS[kind].section)) from None

    def _section(self, fields: dict[str, Any]) -> DataSection:
        """The section of a source, with the mixture's own fields."""
        from regard.data.kinds import KINDS

        section = KINDS[fields["kind"]].section
        own = {name: value for name, value in fields.items() if name != "share"}
        common = {name: getattr(self, name) for name in COMMON if name in section.model_fields}
        return section.model_validate(own | common)

    @property
    def data_sets(self) -> list[MixtureSource]:
        """The sources as sections, with their shares, which add up to 1."""
        total = sum(fields.get("share", 0.0) for fields in self.sources)
        return [
            MixtureSource(self._section(fields), fields["share"] / total if total else None)
            for fields in self.sources
        ]

    @property
    def dialogues(self) -> bool:
        return any(source.section.dialogues for source in self.data_sets)

    def paths(self) -> dict[str, str]:
        paths = {}
        for i, (section, _) in enumerate(self.data_sets):
            paths |= {f"sources.{i}.{name}": path for name, path in section.paths().items()}
        return paths


# The fields that are given once, for all sources.
COMMON = (*(name for name in Texts.model_fields if name != "kind"), "turns")


def _is_text(kind: DataKind) -> bool:
    section = kind.section
    return section.input == "text" and section.answer == "text" and section is not DataMixture


def _sentence(source: str, error: Any, section: type[DataSection]) -> str:
    """A pydantic error as a sentence that begins with the field."""
    if error["type"] == "value_error":  # from the section's own validator
        return f"{source}: {error['ctx']['error']}"
    name = str(error["loc"][0])
    if error["type"] == "extra_forbidden":
        known = [field for field in section.model_fields if field not in COMMON]
        hint = did_you_mean(name, [*known, "share"])
        return f"{source}.{name}: no such field; got {shown(error['input'])}; {hint}"
    must_be = f"must be {allowed(section.model_json_schema()['properties'][name])}"
    if error["type"] == "missing":
        return f"{source}.{name}: missing; {must_be}"
    return f"{source}.{name}: {must_be}; got {shown(error['input'])}"


def _mixture(section: DataMixture, form: SourceForm) -> Contents:
    from regard.data.kinds import KINDS

    parts = []
    for source in section.data_sets:
        part = KINDS[source.section.kind].contents(source.section, form)
        parts.append(part.with_share(source.share))
    files = list(chain.from_iterable(part.files for part in parts))

    def read(*, tally: Any) -> Any:
        return chain.from_iterable(part.train(tally=tally) for part in parts)

    return Contents(read, files, parts=tuple(parts))


KINDS = (
    DataKind(
        section=DataMixture,
        contents=_mixture,
        recipes={"chat": DIALOGUE, "translate": TRANSLATE},
    ),
)
