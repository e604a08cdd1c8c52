"""The budget of a Hugging Face config.json: parameters, multiplications and key/value cache.

The class counted is the one named in `architectures`, or the bare model of the family if none is
named. Parameters equal those of the class in `transformers`; multiplications are those of its
matrix products.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from regard.budget.closed_form.layers import Lengths, named, several
from regard.budget.closed_form.parts import FLOAT, Budget, Part
from regard.budget.closed_form.symbols import ZERO, Amount, Formula, Size, formula, total
from regard.errors import InputError, did_you_mean

LARGEST_FILE = 1 << 24
LARGEST = 1 << 40


class Config:
    """A config.json, whose values are checked when they are read."""

    def __init__(self, values: Mapping[str, Any], where: object):
        self.values = values
        self.where = where

    def size(self, name: str, default: int | None = None) -> int:
        """A whole number of at least 1."""
        value = self.values.get(name)
        if value is None:
            value = default
        if value is None:
            raise InputError(
                "missing", where=f"{self.where}: {name}", hint="must be a whole number >= 1"
            )
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= LARGEST:
            raise InputError(
                f"must be a whole number >= 1 and <= {LARGEST:,}",
                where=f"{self.where}: {name}",
                got=json.dumps(value),
            )
        return value

    def flag(self, name: str, default: bool) -> bool:
        """True or false."""
        value = self.values.get(name, default)
        if not isinstance(value, bool):
            raise InputError(
                "must be true or false", where=f"{self.where}: {name}", got=json.dumps(value)
            )
        return value

    def head(self, width: str, heads: str) -> int:
        """The head width, width / heads, which must be a whole number."""
        if self.size(width) % self.size(heads):
            raise InputError(
                f"{heads} must divide {width}",
                where=self.where,
                got=f"{self.size(heads)} and {self.size(width)}",
            )
        return self.size(width) // self.size(heads)

    @property
    def labels(self) -> int:
        """The number of labels."""
        named = self.values.get("id2label")
        if named is None:
            return self.size("num_labels", 2)
        if not isinstance(named, dict) or not named:
            raise InputError(
                "must name one label at least",
                where=f"{self.where}: id2label",
                got=json.dumps(named)[:80],
            )
        return len(named)

    def refuse(self, name: str, why: str) -> None:
        """Raise if this flag is set, or this list is not empty."""
        if self.values.get(name):
            raise InputError(
                why, where=f"{self.where}: {name}", got=json.dumps(self.values[name])[:80]
            )

    def under_one_name(self, aliases: Mapping[str, str]) -> Config:
        """The config with the names of its own family instead of their aliases."""
        values = dict(self.values)
        for alias, name in aliases.items():
            value = values.pop(alias, None)
            if value is None:
                continue
            if values.get(name, value) != value:
                raise InputError(
                    f"contradicts {name}, which is the same size",
                    where=f"{self.where}: {alias}",
                    got=f"{json.dumps(value)} and {json.dumps(values[name])}",
                )
            values[name] = value
        return Config(values, self.where)

    def architecture(self, *known: str) -> str:
        """The class, which must be one of `known`; the first of them if none is named."""
        named = self.values.get("architectures") or [known[0]]
        name = named[0] if isinstance(named, list) and named else str(named)
        if name not in known:
            raise InputError(
                "no closed form for this class",
                where=f"{self.where}: architectures",
                got=f'"{name}"',
                hint=did_you_mean(str(name), known),
            )
        return name


def read(path: Path) -> Config:
    """The config in a file."""
    try:
        if path.stat().st_size > LARGEST_FILE:
            raise InputError(
                "too large for a config.json", where=path, got=f"{path.stat().st_size:,} bytes"
            )
        values = json.loads(path.read_text("utf-8"))
    except (ValueError, RecursionError):
        raise InputError("not JSON", where=path) from None
    if not isinstance(values, dict):
        raise InputError("not a config.json: it must hold one object", where=path)
    return Config(values, path)


def of_config(config: Config, at: Lengths) -> Budget:
    """The budget of the model that a config describes."""
    family = config.values.get("model_type")
    if family not in FAMILIES:
        raise InputError(
            "no such family, or not one with a closed form",
            where=f"{config.where}: model_type",
            got=json.dumps(family),
            hint=did_you_mean(str(family or ""), FAMILIES),
        )
    config = config.under_one_name(ALIASES.get(family, {}))
    config.refuse("pruned_heads", "pruned heads are not supported")
    title, sizes, parts = FAMILIES[family](config, at)
    parts = tuple(
        replace(part, training=3 * part.forward)
        for part in parts
        if part != Part(part.name, part.sizes)
    )
    P = Size("P", sum(part.parameters.value for part in parts), "parameters")
    bytes_of = {
        "weights": FLOAT * P,
        "gradients": FLOAT * P,
        "optimiser": 2 * FLOAT * P,
        "state": total(*(part.state + at.T * part.state_growth for part in parts)),
        "state_token": total(*(part.state_growth for part in parts)),
    }
    note = (
        "training is counted as 3 x forward; activations and depth are not known for a config.json"
    )
    return Budget(f"{config.where}: {title}", sizes, parts, bytes_of, (note,), deep=False)


# -------------------------------------------------------------------------------------------- parts


def _linear(
    name: str, rows: Amount, inputs: Formula, outputs: Formula, *, bias: bool, token: bool = False
) -> Part:
    return Part(
        name,
        parameters=inputs * outputs + (outputs if bias else 0),
        forward=rows * inputs * outputs,
        token=inputs * outputs if token else ZERO,
    )


def _attention(
    name: str,
    layers: int,
    B: Size,
    T: Formula,
    S: Formula,
    D: Formula,
    E: Formula,
    *,
    heads: int,
    head: int,
    shared: int = 0,
    bias: str = "",
    out_bias: bool = False,
    t: Size | None = None,
    cross: bool = False,
) -> Part:
    """N layers of attention. Queries have width A = heads x head, keys and values width G; `shared`
    is the number of key/value heads; `bias` names which of q, k, v have one."""
    N = several(layers)
    A = D if heads * head == D.value else Size("A", heads * head, "width of all heads")
    groups = shared or heads
    G = A if groups == heads else Size("G", groups * head, "width of all keys")
    biases = total(*({"q": A, "k": G, "v": G}[letter] for letter in bias), D if out_bias else 0)
    query_and_output = 2 * D * A

    token = growth = state = state_growth = ZERO
    if t is not None and cross:  # keys and values of the memory are in the State
        token = N * (query_and_output + 2 * S * A)
        state = 2 * FLOAT * N * S * G
    elif t is not None:
        token = N * (query_and_output + 2 * D * G + 2 * t * A)
        growth = 2 * N * A
        state_growth = 2 * FLOAT * N * G
    return Part(
        name,
        named(N, D, A, G),
        parameters=N * (query_and_output + 2 * E * G + biases),
        forward=N * (B * T * query_and_output + 2 * B * S * E * G + 2 * B * T * S * A),
        token=token,
        growth=growth,
        start=N * 2 * S * E * G if cross else ZERO,
        state=state,
        state_growth=state_growth,
    )


def _feed_forward(
    name: str,
    layers: int,
    rows: Formula,
    D: Formula,
    inner: int,
    *,
    bias: bool,
    gated: bool = False,
    token: bool = False,
) -> Part:
    N = several(layers)
    F = Size("F", inner, "feed-forward width")
    products = (3 if gated else 2) * D * F  # per position
    return Part(
        name,
        named(N, D, F),
        parameters=N * (products + (F + D if bias else 0)),
        forward=N * rows * products,
        token=N * products if token else ZERO,
    )


def _norms(name: str, count: int, D: Formula, *, bias: bool = True) -> Part:
    return Part(name, parameters=count * (2 if bias else 1) * D)


def _table(name: str, rows: int, D: Formula, letter: str = "L") -> Part:
    return Part(name, parameters=Size(letter, rows, "rows of the table") * D)


def _with_prefill(parts: tuple[Part, ...], B: Size) -> tuple[Part, ...]:
    """The parts of an encoder, whose work for one row belongs to the prefill."""
    return tuple(replace(part, start=formula(part.forward.value // B.value)) for part in parts)


# ----------------------------------------------------------------------------------------- families

ONE_STACK = "an encoder and a decoder with shared layers are not supported"
Model = tuple[str, tuple[Size, ...], tuple[Part, ...]]  # class, sizes, parts


def _bert(c: Config, at: Lengths) -> Model:
    name = c.architecture(
        "BertModel",
        "BertForMaskedLM",
        "BertForPreTraining",
        "BertForSequenceClassification",
        "BertForTokenClassification",
    )
    c.refuse("add_cross_attention", "a BERT with cross-attention is not supported")
    D, B, S = Size("D", c.size("hidden_size"), "width"), at.B, at.S
    V = Size("V", c.size("vocab_size"), "vocabulary")
    N = c.size("num_hidden_layers")
    H = c.size("num_attention_heads")
    _check_length(c, at.S, "max_position_embeddings")
    parts = [
        Part("embedding", (V, D), parameters=V * D),
        _table("positions", c.size("max_position_embeddings"), D),
        _table("token types", c.size("type_vocab_size", 2), D, "Y"),
        _attention(
            "self-attention", N, B, S, S, D, D,
            heads=H, head=c.head("hidden_size", "num_attention_heads"), bias="qkv", out_bias=True,
        ),
        _feed_forward("feed-forward", N, B * S, D, c.size("intermediate_size"), bias=True),
        _norms("norms", 2 * N + 1, D),
    ]  # fmt: skip
    if name not in ("BertForMaskedLM", "BertForTokenClassification"):
        parts.append(_linear("pooler", B, D, D, bias=True))
    if name in ("BertForMaskedLM", "BertForPreTraining"):
        parts.append(_linear("head, transform", B * S, D, D, bias=True))
        parts.append(_norms("head, norm", 1, D))
        # The bias is a parameter of the head and of its output layer: two, unless they are tied.
        parameters = V if c.flag("tie_word_embeddings", True) else V * D + 2 * V
        parts.append(Part("head, output", (V, D), parameters=parameters, forward=B * S * V * D))
    labels = 2 if name == "BertForPreTraining" else c.labels
    if name not in ("BertModel", "BertForMaskedLM"):
        rows = B * S if name == "BertForTokenClassification" else B
        parts.append(_linear("head, labels", rows, D, Size("C", labels, "labels"), bias=True))
    return name, (B, S, V), tuple(parts)


def _gpt2(c: Config, at: Lengths) -> Model:
    name = c.architecture("GPT2Model", "GPT2LMHeadModel")
    D, B, T = Size("D", c.size("n_embd"), "width"), at.B, at.T
    V = Size("V", c.size("vocab_size"), "vocabulary")
    N = c.size("n_layer")
    H = c.size("n_head")
    _check_length(c, at.T, "n_positions")
    parts = [
        Part("embedding", (V, D), parameters=V * D),
        _table("positions", c.size("n_positions"), D),
        _attention(
            "self-attention", N, B, T, T, D, D,
            heads=H, head=c.head("n_embd", "n_head"), bias="qkv", out_bias=True, t=at.t,
        ),
        _feed_forward(
            "feed-forward", N, B * T, D, c.size("n_inner", 4 * D.value), bias=True, token=True
        ),
        _norms("norms", 2 * N + 1, D),
    ]  # fmt: skip
    has_memory = c.flag("add_cross_attention", False)
    if has_memory:  # as wide as the model
        parts.append(
            _attention(
                "cross-attention", N, B, T, at.S, D, D,
                heads=H, head=c.head("n_embd", "n_head"), bias="qkv", out_bias=True,
                t=at.t, cross=True,
            )
        )  # fmt: skip
        parts.append(_norms("cross-attention norms", N, D))
    if name == "GPT2LMHeadModel":
        parts.append(_output(V, D, B * T, tied=c.flag("tie_word_embeddings", True)))
    return name, (B, at.S, T, V) if has_memory else (B, T, V), tuple(parts)


def _t5(c: Config, at: Lengths) -> Model:
    name = c.architecture("T5Model", "T5ForConditionalGeneration", "T5EncoderModel")
    c.refuse("tie_encoder_decoder", ONE_STACK)
    if name == "T5EncoderModel":
        c.refuse("is_decoder", "an encoder with the layers of a decoder is not supported")
    D, B, S, T = Size("D", c.size("d_model"), "width"), at.B, at.S, at.T
    V = Size("V", c.size("vocab_size"), "vocabulary")
    H = c.size("num_heads")
    K = c.size("d_kv")
    N = c.size("num_layers")
    M = c.size("num_decoder_layers", N)
    F = c.size("d_ff")
    gated = c.flag(
        "is_gated_act", str(c.values.get("feed_forward_proj", "relu")).split("-")[0] == "gated"
    )
    buckets = Size("R", c.size("relative_attention_num_buckets", 32), "distance buckets")
    heads = Size("H", H, "heads")
    encoder = (
        Part("encoder positions", (buckets, heads), parameters=buckets * heads),
        _attention("encoder self-attention", N, B, S, S, D, D, heads=H, head=K),
        _feed_forward("encoder feed-forward", N, B * S, D, F, bias=False, gated=gated),
        _norms("encoder norms", 2 * N + 1, D, bias=False),
    )
    parts = [Part("embedding", (V, D), parameters=V * D), *_with_prefill(encoder, B)]
    if name != "T5EncoderModel":
        parts += [
            Part("decoder positions", (buckets, heads), parameters=buckets * heads),
            _attention("decoder self-attention", M, B, T, T, D, D, heads=H, head=K, t=at.t),
            _attention(
                "decoder cross-attention", M, B, T, S, D, D, heads=H, head=K, t=at.t, cross=True
            ),
            _feed_forward(
                "decoder feed-forward", M, B * T, D, F, bias=False, gated=gated, token=True
            ),
            _norms("decoder norms", 3 * M + 1, D, bias=False),
        ]
    if name == "T5ForConditionalGeneration":
        # transformers ties a T5 whatever `tie_word_embeddings` says: there it means whether outputs
        # are scaled.
        parts.append(_output(V, D, B * T, tied=True))
    return name, (B, S, T, V), tuple(parts)


def _seq2seq(
    c: Config, at: Lengths, *, k_bias: bool = True
) -> tuple[tuple[Part, ...], tuple[Part, ...]]:
    """The layers of encoder and decoder that BART, Marian and Whisper have in common."""
    c.refuse("tie_encoder_decoder", ONE_STACK)
    D, B, S, T = Size("D", c.size("d_model"), "width"), at.B, at.S, at.T
    N, M = c.size("encoder_layers"), c.size("decoder_layers")
    biased: dict[str, Any] = {"bias": "qkv" if k_bias else "qv", "out_bias": True}
    encoder: dict[str, Any] = {
        "heads": c.size("encoder_attention_heads"),
        "head": c.head("d_model", "encoder_attention_heads"),
    } | biased
    decoder: dict[str, Any] = {
        "heads": c.size("decoder_attention_heads"),
        "head": c.head("d_model", "decoder_attention_heads"),
    } | biased
    return (
        _attention("encoder self-attention", N, B, S, S, D, D, **encoder),
        _feed_forward("encoder feed-forward", N, B * S, D, c.size("encoder_ffn_dim"), bias=True),
    ), (
        _attention("decoder self-attention", M, B, T, T, D, D, **decoder, t=at.t),
        _attention("decoder cross-attention", M, B, T, S, D, D, **decoder, t=at.t, cross=True),
        _feed_forward(
            "decoder feed-forward", M, B * T, D, c.size("decoder_ffn_dim"), bias=True, token=True
        ),
    )


def _bart(c: Config, at: Lengths) -> Model:
    name = c.architecture("BartModel", "BartForConditionalGeneration")
    D = Size("D", c.size("d_model"), "width")
    V = Size("V", c.size("vocab_size"), "vocabulary")
    _check_length(c, at.S, "max_position_embeddings")
    _check_length(c, at.T, "max_position_embeddings")
    encoder, decoder = _seq2seq(c, at)
    positions = c.size("max_position_embeddings") + 2
    N = c.size("encoder_layers")
    M = c.size("decoder_layers")
    tied = c.flag("tie_word_embeddings", True)
    parts = [
        Part("embedding", (V, D), parameters=V * D),
        *(
            ()
            if tied
            else (Part("embeddings of encoder and decoder", (V, D), parameters=2 * V * D),)
        ),
        _table("encoder positions", positions, D),
        *_with_prefill(encoder, at.B),
        _norms("encoder norms", 2 * N + 1, D),
        _table("decoder positions", positions, D),
        *decoder,
        _norms("decoder norms", 3 * M + 1, D),
    ]
    if name == "BartForConditionalGeneration":
        parts.append(_output(V, D, at.B * at.T, tied=tied))
    return name, (at.B, at.S, at.T, V), tuple(parts)


def _marian(c: Config, at: Lengths) -> Model:
    name = c.architecture("MarianModel", "MarianMTModel")
    D = Size("D", c.size("d_model"), "width")
    V = Size("V", c.size("vocab_size"), "vocabulary")
    _check_length(c, at.S, "max_position_embeddings")
    _check_length(c, at.T, "max_position_embeddings")
    encoder, decoder = _seq2seq(c, at)
    positions = c.size("max_position_embeddings")
    N = c.size("encoder_layers")
    M = c.size("decoder_layers")
    W = Size("W", c.size("decoder_vocab_size", V.value), "target vocabulary")
    shared = c.flag("share_encoder_decoder_embeddings", True)
    tied = c.flag("tie_word_embeddings", True)
    parts = [
        Part("embedding", (V, D), parameters=V * D),
        *((Part("encoder embedding", (V, D), parameters=V * D),) if shared and not tied else ()),
        _table("encoder positions", positions, D),
        *_with_prefill(encoder, at.B),
        _norms("encoder norms", 2 * N, D),
        *(() if shared and tied else (Part("target embedding", (W, D), parameters=W * D),)),
        _table("decoder positions", positions, D),
        *decoder,
        _norms("decoder norms", 3 * M, D),
    ]
    if name == "MarianMTModel":
        parts.append(_output(V if shared else W, D, at.B * at.T, tied=tied))
    return name, (at.B, at.S, at.T, V), tuple(parts)


def _llama(
    c: Config,
    at: Lengths,
    *,
    family: str = "Llama",
    bias: str = "",
    out_bias: bool = False,
    ffn_bias: bool = False,
    groups: int | None = None,
) -> Model:
    """`groups` is the default number of key/value heads; null in the file means as many as
    heads."""
    name = c.architecture(f"{family}Model", f"{family}ForCausalLM")
    D, B, T = Size("D", c.size("hidden_size"), "width"), at.B, at.T
    V = Size("V", c.size("vocab_size"), "vocabulary")
    N = c.size("num_hidden_layers")
    H = c.size("num_attention_heads")
    head = (
        c.size("head_dim")
        if c.values.get("head_dim")
        else c.head("hidden_size", "num_attention_heads")
    )
    groups = c.size(
        "num_key_value_heads", H if groups is None or "num_key_value_heads" in c.values else groups
    )
    if H % groups:
        raise InputError(
            "num_key_value_heads must divide num_attention_heads",
            where=c.where,
            got=f"{groups} and {H}",
        )
    parts = [
        Part("embedding", (V, D), parameters=V * D),
        _attention(
            "self-attention", N, B, T, T, D, D,
            heads=H, head=head, shared=groups, bias=bias, out_bias=out_bias, t=at.t,
        ),
        replace(
            _feed_forward(
                "feed-forward", N, B * T, D, c.size("intermediate_size"),
                bias=False, gated=True, token=True,
            ),
            parameters=_gated_parameters(c, N, D, bias=ffn_bias),
        ),
        _norms("norms", 2 * N + 1, D, bias=False),
    ]  # fmt: skip
    if name.endswith("ForCausalLM"):
        parts.append(_output(V, D, B * T, tied=c.flag("tie_word_embeddings", False)))
    return name, (B, T, V), tuple(parts)


def _gated_parameters(c: Config, layers: int, D: Size, *, bias: bool) -> Formula:
    N, F = (
        several(layers),
        Size("F", c.size("intermediate_size"), "feed-forward width"),
    )
    return N * (3 * D * F + (2 * F + D if bias else 0))


def _plain_llama(c: Config, at: Lengths) -> Model:
    biased = c.flag("attention_bias", False)
    return _llama(
        c, at, bias="qkv" if biased else "", out_bias=biased, ffn_bias=c.flag("mlp_bias", False)
    )


def _mistral(c: Config, at: Lengths) -> Model:
    return _llama(c, at, family="Mistral", groups=8)


def _qwen2(c: Config, at: Lengths) -> Model:
    return _llama(c, at, family="Qwen2", bias="qkv", groups=32)


def _whisper(c: Config, at: Lengths) -> Model:
    """Whisper always reads its full window: 2 S frames, where S is `max_source_positions`."""
    name = c.architecture("WhisperModel", "WhisperForConditionalGeneration")
    D = Size("D", c.size("d_model"), "width")
    V = Size("V", c.size("vocab_size"), "vocabulary")
    bins, R = Size("I", c.size("num_mel_bins"), "mel bins"), 3
    _check_length(c, at.T, "max_target_positions")
    at = replace(at, S=Size("S", c.size("max_source_positions"), "source length, two frames each"))
    encoder, decoder = _seq2seq(c, at, k_bias=False)
    B, S, N, M = at.B, at.S, c.size("encoder_layers"), c.size("decoder_layers")
    sound = (
        Part(
            "convolution 1",
            (bins, D),
            parameters=R * bins * D + D,
            forward=2 * B * S * R * bins * D,
        ),
        Part("convolution 2", (D,), parameters=R * D**2 + D, forward=B * S * R * D**2),
    )
    parts = [
        *_with_prefill(sound, B),
        _table("encoder positions", S.value, D),
        *_with_prefill(encoder, B),
        _norms("encoder norms", 2 * N + 1, D),
        Part("embedding", (V, D), parameters=V * D),
        _table("decoder positions", c.size("max_target_positions"), D),
        *decoder,
        _norms("decoder norms", 3 * M + 1, D),
    ]
    if name == "WhisperForConditionalGeneration":
        parts.append(_output(V, D, B * at.T, tied=c.flag("tie_word_embeddings", True)))
    return name, (B, S, at.T, V), tuple(parts)


def _vit(c: Config, at: Lengths) -> Model:
    """An image of fixed size: its patches and the class token."""
    name = c.architecture("ViTModel", "ViTForImageClassification")
    D, B = Size("D", c.size("hidden_size"), "width"), at.B
    N, H, patch = c.size("num_hidden_layers"), c.size("num_attention_heads"), c.size("patch_size")
    across, channels = c.size("image_size"), c.size("num_channels", 3)
    if across % patch:
        raise InputError(
            "patch_size must divide image_size", where=c.where, got=f"{patch} and {across}"
        )
    inputs = Size("I", channels * patch**2, "values per patch")
    S = Size("S", (across // patch) ** 2 + 1, "patches and class token")
    biased = c.flag("qkv_bias", True)
    parts = [
        Part("patches", (inputs, D), parameters=inputs * D + D, forward=B * (S - 1) * inputs * D),
        Part("class token and positions", (D,), parameters=(S + 1) * D),
        _attention(
            "self-attention", N, B, S, S, D, D,
            heads=H, head=c.head("hidden_size", "num_attention_heads"),
            bias="qkv" if biased else "", out_bias=True,
        ),
        _feed_forward("feed-forward", N, B * S, D, c.size("intermediate_size"), bias=True),
        _norms("norms", 2 * N + 1, D),
    ]  # fmt: skip
    if name == "ViTModel":
        width = Size("O", c.size("pooler_output_size", D.value), "width of the pooler")
        parts.append(_linear("pooler", B, D, D if width.value == D.value else width, bias=True))
    else:
        parts.append(_linear("head, labels", B, D, Size("C", c.labels, "labels"), bias=True))
    return name, (B, S), tuple(parts)


def _output(V: Size, D: Size, rows: Formula, *, tied: bool) -> Part:
    name = "output (the embedding)" if tied else "output"
    return Part(name, (V, D), parameters=ZERO if tied else V * D, forward=rows * V * D, token=V * D)


def _check_length(c: Config, length: Size, name: str) -> None:
    if length.value > c.size(name):
        raise InputError(
            f"longer than the model's positions: at most {c.size(name):,}",
            where="length",
            got=f"{length.value:,}",
            hint=f"{name} in {c.where}",
        )


# Other names that transformers accepts for the sizes of a family.
_SEQ2SEQ = {
    "num_attention_heads": "encoder_attention_heads",
    "hidden_size": "d_model",
    "num_hidden_layers": "encoder_layers",
}
ALIASES: dict[str, dict[str, str]] = {
    "gpt2": {
        "hidden_size": "n_embd",
        "max_position_embeddings": "n_positions",
        "num_attention_heads": "n_head",
        "num_hidden_layers": "n_layer",
    },
    "t5": {
        "hidden_size": "d_model",
        "num_attention_heads": "num_heads",
        "num_hidden_layers": "num_layers",
        "head_dim": "d_kv",
    },
    "bart": _SEQ2SEQ,
    "marian": _SEQ2SEQ,
    "whisper": _SEQ2SEQ | {"num_key_value_heads": "encoder_attention_heads"},
}

FAMILIES: dict[str, Callable[[Config, Lengths], Model]] = {
    "bert": _bert,
    "gpt2": _gpt2,
    "t5": _t5,
    "bart": _bart,
    "marian": _marian,
    "llama": _plain_llama,
    "mistral": _mistral,
    "qwen2": _qwen2,
    "whisper": _whisper,
    "vit": _vit,
}
