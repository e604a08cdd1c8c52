"""Budgets of models from numbers alone, as in `vocabulary=30000,encoder=12,width=1024,heads=4`."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from regard.budget.closed_form import layers, memory, models
from regard.budget.closed_form.attention import Form, Stack, self_attention
from regard.budget.closed_form.layers import Lengths
from regard.budget.closed_form.parts import FLOAT, Budget, Part
from regard.budget.closed_form.recurrent import STATES, Cells, cells
from regard.budget.closed_form.symbols import ZERO, Formula, Size
from regard.errors import InputError, did_you_mean
from regard.layers.sizes import Kernel
from regard.recipe import LARGEST, allowed, read_value, shown

Positive = Annotated[int, Field(ge=1, le=LARGEST)]
Layers = Annotated[int, Field(ge=0, le=4096)]


class Numbers(BaseModel):
    """Sizes that are typed as name=value pairs."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, use_attribute_docstrings=True
    )


class _Heads(Numbers):
    width: Positive
    """D, width of the model."""
    heads: Positive
    """H, attention heads."""
    head_width: Positive = Field(
        default_factory=lambda data: max(1, data["width"] // data["heads"])
    )
    """K, head width; default: width / heads, which must then be a whole number."""
    kernel: Kernel = "softmax"
    """How attention weights are computed from scores."""
    terms: Annotated[int, Field(ge=1, le=9)] = 3
    """Terms of the Maclaurin series."""

    @model_validator(mode="after")
    def _divides(self) -> Self:
        if "head_width" not in self.model_fields_set and self.width % self.heads:
            raise ValueError(
                "heads must divide width, or give head_width too; "
                f"got heads = {self.heads}, width = {self.width}"
            )
        return self


class Transformer(_Heads):
    """An encoder and a decoder, or only one of them."""

    vocabulary: Positive
    """V, vocabulary size."""
    encoder: Layers
    """Encoder layers; 0: no encoder, a language model."""
    decoder: Layers
    """Decoder layers; 0: no decoder."""
    ffn_width: Positive = Field(default_factory=lambda data: 4 * data["width"])
    """F, feed-forward width; default: 4 x width."""
    tied: Literal["all", "output", "none"] = "all"
    """Which embeddings are shared: source, target and output; target and output; none."""
    output_bias: bool = False
    """Whether the logits have a bias."""
    norm: Literal["pre", "post"] = "post"
    """Norm before each sublayer (and once at the end), or after it."""
    positions: Literal["none", "sinusoidal", "learned", "rotary", "alibi", "relative"] = "none"
    """Position encoding."""
    activation: Literal["relu", "gelu"] = "relu"
    """Activation of the feed-forward part."""
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Dropout rate, which costs memory only."""

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
    """Whether a position attends only to itself and those before it."""


class Recurrent(Numbers):
    """LSTM or GRU layers over a sequence, as in torch.nn."""

    width: Positive
    """D, width of the state of a direction."""
    inputs: Positive = Field(default_factory=lambda data: data["width"])
    """I, width of the input; default: width."""
    layers: Annotated[int, Field(ge=1, le=4096)] = 1
    """N, layers."""
    directions: Annotated[int, Field(ge=1, le=2)] = 1
    """1: left to right; 2: both directions."""


N = TypeVar("N", bound=Numbers)


def read(model: type[N], text: str, option: str) -> N:
    """The sizes in a text such as `width=512,heads=8`; one error lists all that is wrong."""
    values: dict[str, Any] = {}
    for pair in text.split(","):
        key, equals, value = (word.strip() for word in pair.partition("="))
        if not key or not equals:
            raise InputError(
                "numbers have the form name=value,name=value", where=option, got=f'"{pair}"'
            )
        if key in values:
            raise InputError("given twice", where=f"{option}: {key}")
        values[key] = read_value(value)
    try:
        return model.model_validate(values)
    except ValidationError as error:
        items = error.errors(include_url=False)
    messages = [_problem(model, item, values, option) for item in items]
    problems = [message for message in dict.fromkeys(messages) if message]
    if len(problems) == 1:
        raise InputError(problems[0])
    raise InputError(
        f"{option}: {len(problems)} things to fix",
        details=[problem.removeprefix(f"{option}: ") for problem in problems],
    )


def _problem(model: type[Numbers], item: Any, values: dict[str, Any], option: str) -> str:
    """The message of one of pydantic's errors, empty if it only follows from another."""
    if item["type"] == "default_factory_not_called":
        return ""  # a default that needs another number, which is wrong
    if not item["loc"]:
        return f"{option}: {item['ctx']['error']}"
    field = str(item["loc"][0])
    hint = None
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
            got=shown(values[field]) if field in values else None,
            hint=hint,
        )
    )


# ------------------------------------------------------------------------------------------ budgets


def transformer(n: Transformer, at: Lengths, *, form: Form = "auto") -> Budget:
    """A Transformer of encoder and decoder, or of one of them."""
    V = Size("V", n.vocabulary, "vocabulary")

    def stack(layers: int, length: Size) -> Stack:
        return Stack(
            layers=layers,
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
            longest=length.value,
            form=form,
        )

    encoder = stack(n.encoder, at.S)
    decoder = stack(n.decoder, at.T)
    memory_bytes: Formula = ZERO
    parts: tuple[Part, ...]
    if n.encoder:
        E = Size("E", n.width, "width of the memory")
        source = layers.embedding(
            "source embedding",
            V,
            encoder.D,
            at.B,
            at.S,
            shared=False,
            dropout=n.dropout,
            decoding=False,
        )
        parts = (source, *models.transformer_encoder(encoder, at))
        memory_bytes = FLOAT * at.B * at.S * E
        if n.decoder:
            parts = models.transformer_decoder(
                decoder,
                V,
                at,
                models.EncoderParts(parts, at.S, E, ZERO),
                shared=n.tied == "all",
                tied=n.tied != "none",
                bias=n.output_bias,
            )
    else:
        parts = models.language_model(decoder, V, at, tied=n.tied != "none", bias=n.output_bias)

    stacks = [f"{n.encoder} encoder layers"] if n.encoder else []
    stacks += [f"{n.decoder} decoder layers"] if n.decoder else []
    sizes = (at.B, *((at.S,) if n.encoder else ()), *((at.T,) if n.decoder else ()), V)
    return Budget(
        "a Transformer of " + " and ".join(stacks),
        sizes,
        parts,
        memory.bytes_of(parts, at, memory=memory_bytes),
        shapes=_shapes(n, at, V, encoder),
    )


def untied(n: Transformer, at: Lengths) -> int:
    """The parameters if nothing were tied and the logits had a bias."""
    return transformer(n.model_copy(update={"tied": "none", "output_bias": True}), at).parameters


def _shapes(
    n: Transformer, at: Lengths, V: Size, s: Stack
) -> tuple[tuple[str, tuple[Size | int, ...]], ...]:
    """The shape of every tensor between the parts."""
    B, S, T, D, H, K = at.B, at.S, at.T, s.D, s.H, s.K
    shapes: list[tuple[str, tuple[Size | int, ...]]] = []

    def stack(name: str, L: Size) -> None:
        shapes.append((f"{name} ids", (B, L)))
        shapes.append((f"{name} input and output of a layer", (B, L, D)))
        shapes.append((f"{name} queries, keys and values, each", (B, H, L, K)))
        if n.kernel == "softmax":
            shapes.append((f"{name} attention scores", (B, H, L, L)))
        else:
            shapes.append((f"{name} sums of features", (B, H, s.features, K.value + 1)))
        shapes.append((f"{name} feed-forward hidden layer", (B, L, s.F)))

    if n.encoder:
        stack("source", S)
    if n.decoder:
        stack("target", T)
        if n.encoder:
            shapes.append(("cross-attention keys and values, each", (B, H, S, K)))
            if n.kernel == "softmax":
                shapes.append(("cross-attention scores", (B, H, T, S)))
        shapes.append(("logits", (B, T, V)))
    return tuple(shapes)


def attention(n: Attention, at: Lengths, *, form: Form = "auto") -> Budget:
    """One layer of self-attention, without norm and residual."""
    L = Size("L", at.S.value, "length")
    s = Stack(
        layers=1,
        width=n.width,
        heads=n.heads,
        head_width=n.head_width,
        ffn_width=1,
        kernel=n.kernel,
        terms=n.terms,
        form=form,
    )
    t = Size("t", at.S.value, "position of the token")
    part = self_attention("self-attention", s, at.B, L, t if n.causal else None, causal=n.causal)
    norm_and_residual = layers.norm_steps(s.D) + 1
    part = replace(
        part,
        depth=part.depth - norm_and_residual,
        token_depth=part.token_depth - norm_and_residual if n.causal else ZERO,
        start=ZERO,
    )
    return Budget(
        f"self-attention of {n.heads} heads",
        (at.B, L),
        (part,),
        memory.bytes_of((part,), Lengths(at.B, L, L)),
    )


def recurrent(n: Recurrent, cell: str, at: Lengths) -> Budget:
    """LSTM or GRU layers."""
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
