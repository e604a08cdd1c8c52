"""Models from numbers alone:
`vocabulary=30000,encoder=12,decoder=8,width=1024,heads=4,ffn_width=512`."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from regard.budget.closed_form import layers, memory, models
from regard.budget.closed_form.attention import Stack, self_attention
from regard.budget.closed_form.layers import Lengths
from regard.budget.closed_form.parts import FLOAT, Budget, Part
from regard.budget.closed_form.recurrent import STATES, Cells, cells
from regard.budget.closed_form.symbols import ZERO, Formula, Size
from regard.errors import InputError, did_you_mean
from regard.recipe import LARGEST, allowed, read_value, shown

Positive = Annotated[int, Field(ge=1, le=LARGEST)]
Layers = Annotated[int, Field(ge=0, le=4096)]


class Numbers(BaseModel):
    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, use_attribute_docstrings=True
    )


class _Heads(Numbers):
    width: Positive
    """D, width of the model."""
    heads: Positive
    """H, heads of each attention."""
    head_width: Positive = Field(
        default_factory=lambda data: max(1, data["width"] // data["heads"])
    )
    """K, width of a head; derived: width / heads, which then must come out even."""
    kernel: Literal["softmax", "maclaurin"] = "softmax"
    """What makes weights of scores."""
    terms: Annotated[int, Field(ge=1, le=9)] = 3
    """Terms of the Maclaurin series."""

    @model_validator(mode="after")
    def _divides(self) -> Self:
        if "head_width" not in self.model_fields_set and self.width % self.heads:
            raise ValueError(
                f"heads must divide width, or give head_width too; got heads = {self.heads}, width = {self.width}"
            )
        return self


class Transformer(_Heads):
    """An encoder and a decoder, or only one of them."""

    vocabulary: Positive
    """V, the tokens there are."""
    encoder: Layers
    """Layers of the encoder; 0: none, a language model."""
    decoder: Layers
    """Layers of the decoder; 0: none."""
    ffn_width: Positive = Field(default_factory=lambda data: 4 * data["width"])
    """F, width inside the feed-forward part; derived: four times the width."""
    tied: Literal["all", "output", "none"] = "all"
    """Which matrices are one: source, target and output; target and output; none."""
    output_bias: bool = False
    """Whether the logits have a bias."""
    norm: Literal["pre", "post"] = "post"
    """Normalises before each part of a layer (and once at the end), or after it."""
    positions: Literal["none", "sinusoidal", "learned", "rotary", "alibi", "relative"] = "none"
    """How order is told."""
    activation: Literal["relu", "gelu"] = "relu"
    """The bend in the feed-forward part."""
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Share set to zero in training, which costs memory only."""

    @model_validator(mode="after")
    def _something(self) -> Self:
        if not self.encoder and not self.decoder:
            raise ValueError("encoder and decoder are both 0: there is nothing to count")
        if self.kernel == "maclaurin" and self.positions in ("alibi", "relative"):
            raise ValueError(
                f"kernel = maclaurin has no scores to add to; got positions = {self.positions}"
            )
        return self


class Attention(_Heads):
    """One layer of multi-head self-attention."""

    causal: bool = False
    """Whether a place sees only those before it."""


class Recurrent(Numbers):
    """Layers of cells over a sequence, as torch.nn.LSTM and GRU have them."""

    width: Positive
    """D, width of the state, in each direction."""
    inputs: Positive = Field(default_factory=lambda data: data["width"])
    """I, width of the input; derived: the width."""
    layers: Annotated[int, Field(ge=1, le=4096)] = 1
    """N, layers, one upon the other."""
    directions: Annotated[int, Field(ge=1, le=2)] = 1
    """1 reads left to right, 2 both ways."""


N = TypeVar("N", bound=Numbers)


def read(model: type[N], written: str, option: str) -> N:
    """`width=512,heads=8` as numbers; one error lists all that is wrong."""
    given: dict[str, Any] = {}
    for pair in written.split(","):
        key, equals, value = (word.strip() for word in pair.partition("="))
        if not key or not equals:
            raise InputError(
                "numbers have the form name=value,name=value", where=option, got=f'"{pair}"'
            )
        if key in given:
            raise InputError("given twice", where=f"{option}: {key}")
        given[key] = read_value(value)
    try:
        return model.model_validate(given)
    except ValidationError as error:
        problems = list(
            dict.fromkeys(
                _problem(model, item, given, option) for item in error.errors(include_url=False)
            )
        )
    problems = [problem for problem in problems if problem]
    if len(problems) == 1:
        raise InputError(problems[0])
    raise InputError(
        f"{option}: {len(problems)} things to fix",
        details=[problem.removeprefix(f"{option}: ") for problem in problems],
    )


def _problem(model: type[Numbers], item: Any, given: dict[str, Any], option: str) -> str:
    if item["type"] == "default_factory_not_called":
        return ""  # a derived number, missing only because another is wrong
    if not item["loc"]:
        return f"{option}: {item['ctx']['error']}"
    field, hint = str(item["loc"][0]), None
    properties = model.model_json_schema()["properties"]
    match item["type"]:
        case "extra_forbidden":
            what, hint = "no such number", did_you_mean(field, properties)
        case "missing":
            what, hint = "missing", f"must be {allowed(properties[field])}"
        case _:
            what = f"must be {allowed(properties[field])}"
    return str(
        InputError(
            what,
            where=f"{option}: {field}",
            got=shown(given[field]) if field in given else None,
            hint=hint,
        )
    )


# ------------------------------------------------------------------------------------------ budgets


def transformer(n: Transformer, at: Lengths, *, form: str = "auto") -> Budget:
    V = Size("V", n.vocabulary, "vocabulary")
    reads, writes = (
        Stack(
            layers=count,
            width=n.width,
            heads=n.heads,
            head_width=n.head_width,
            ffn_width=n.ffn_width,
            norm=n.norm,
            positions=n.positions,
            activation=n.activation,
            kernel=n.kernel,
            terms=n.terms,
            dropout=n.dropout,
            longest=length,
            form=form,
        )
        for count, length in ((n.encoder, at.S.value), (n.decoder, at.T.value))
    )
    kept: Formula = ZERO
    parts: tuple[Part, ...] = ()
    if n.encoder:
        D, E = reads.D, Size("E", n.width, "width of the memory")
        source = layers.embedding(
            "source embedding", V, D, at.B, at.S, shared=False, dropout=n.dropout, decoding=False
        )
        parts = (source, *models.transformer_encoder(reads, at))
        kept = FLOAT * at.B * at.S * E
        if n.decoder:
            memory_of = models.Read(parts, at.S, E, ZERO)
            tied = {"shared": n.tied == "all", "tied": n.tied != "none"}
            parts = models.transformer_decoder(writes, V, at, memory_of, **tied, bias=n.output_bias)
    else:
        parts = models.language_model(writes, V, at, tied=n.tied != "none", bias=n.output_bias)
    sizes = (at.B, *((at.S,) if n.encoder else ()), *((at.T,) if n.decoder else ()), V)
    return Budget(
        "a Transformer of "
        + " and ".join(
            f"{count} {name} layers"
            for count, name in ((n.encoder, "encoder"), (n.decoder, "decoder"))
            if count
        ),
        sizes,
        parts,
        memory.bytes_of(parts, at, memory=kept),
        shapes=_shapes(n, at, V, reads),
    )


def untied(n: Transformer, at: Lengths) -> int:
    """The parameters if nothing were tied and the logits had a bias."""
    return transformer(n.model_copy(update={"tied": "none", "output_bias": True}), at).parameters


def _shapes(
    n: Transformer, at: Lengths, V: Size, s: Stack
) -> tuple[tuple[str, tuple[Size | int, ...]], ...]:
    """Every signal between the parts."""
    B, S, T, D, H, K = at.B, at.S, at.T, s.D, s.H, s.K
    made: list[tuple[str, tuple[Size | int, ...]]] = []

    def stack(name: str, L: Size) -> None:
        made.append((f"{name} ids", (B, L)))
        made.append((f"{name} activations, in and out of every layer", (B, L, D)))
        made.append((f"{name} queries, keys, values of the heads, each", (B, H, L, K)))
        if n.kernel == "softmax":
            made.append((f"{name} scores and weights", (B, H, L, L)))
        else:
            made.append((f"{name} sums of features", (B, H, s.features, K.value + 1)))
        made.append((f"{name} inside the feed-forward part", (B, L, s.F)))

    if n.encoder:
        stack("source", S)
    if n.decoder:
        stack("target", T)
        if n.encoder:
            made.append(("keys and values of the memory, each", (B, H, S, K)))
            if n.kernel == "softmax":
                made.append(("scores and weights over the memory", (B, H, T, S)))
        made.append(("logits", (B, T, V)))
    return tuple(made)


def attention(n: Attention, at: Lengths, *, form: str = "auto") -> Budget:
    """One layer alone: no norm and no residual around it."""
    L = Size("L", at.S.value, "length")
    s = Stack(1, n.width, n.heads, n.head_width, 1, kernel=n.kernel, terms=n.terms, form=form)
    t = Size("t", at.S.value, "position of the token")
    part = self_attention("self-attention", s, at.B, L, t if n.causal else None, causal=n.causal)
    around = layers.norm_steps(s.D) + 1
    part = replace(
        part,
        depth=part.depth - around,
        token_depth=part.token_depth - around if n.causal else ZERO,
        start=ZERO,
    )
    return Budget(
        f"self-attention of {n.heads} heads",
        (at.B, L),
        (part,),
        memory.bytes_of((part,), Lengths(at.B, L, L)),
    )


def recurrent(n: Recurrent, cell: str, at: Lengths) -> Budget:
    T = Size("T", at.S.value, "length")
    c = Cells(cell, n.inputs, n.width, n.layers, n.directions)
    part = cells("cells", c, at.B, T, from_zeros=True, decoding=n.directions == 1)
    return Budget(
        f"{cell.upper()}, {n.layers} {'layer' if n.layers == 1 else 'layers'}",
        (at.B, T),
        (part,),
        memory.bytes_of((part,), Lengths(at.B, T, T)),
        shapes=(
            ("input", (at.B, T, c.I)),
            ("states", (at.B, T, n.directions * n.width)),
            *(
                ((f"last {name}", (n.directions * n.layers, at.B, c.D)))
                for name in ("h", "c")[: STATES[cell]]
            ),
        ),
    )
