"""Random config.json files of every family, with every flag that a closed form reads or could
overlook.

Parameters equal those of transformers' own class on the meta device, or the file is refused in
one line that names the flag."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers

from regard.budget import huggingface
from regard.budget.closed_form.layers import Lengths
from regard.errors import InputError

pytestmark = pytest.mark.filterwarnings("ignore")
transformers.logging.set_verbosity_error()
SAMPLE, ALL = 150, 2000
Values = dict[str, Any]


def maybe(draw: random.Random, share: float, **values: Any) -> Values:
    """Each of the values, with this probability."""
    return {name: value for name, value in values.items() if draw.random() < share}


def flip(draw: random.Random) -> bool:
    return draw.random() < 0.5


def labels(draw: random.Random) -> Values:
    count = draw.randrange(1, 9)
    if flip(draw):
        return {
            "id2label": {str(i): f"label {i}" for i in range(count if draw.random() < 0.95 else 0)}
        }
    return maybe(draw, 0.7, num_labels=count)


def anywhere(draw: random.Random) -> Values:
    """What may stand in any file, and changes no parameter of any class here."""
    return maybe(
        draw,
        0.1,
        use_cache=flip(draw),
        output_attentions=False,
        torch_dtype="float16",
        transformers_version="4.30.0",
        initializer_range=0.01,
        hidden_dropout_prob=0.2,
        scale_embedding=flip(draw),
        an_unknown_flag=flip(draw),
        pruned_heads=draw.choice([{}, {}, {"0": [0]}]),
        hidden_size=draw.randrange(4, 60),
        num_hidden_layers=draw.randrange(1, 4),
        num_attention_heads=draw.randrange(1, 4),
        tie_encoder_decoder=flip(draw),
        is_encoder_decoder=flip(draw),
    )


def heads_and_width(draw: random.Random) -> tuple[int, int]:
    heads = draw.randrange(1, 6)
    return heads, heads * 2 * draw.randrange(1, 8)


def bert(draw: random.Random) -> Values:
    heads, width = heads_and_width(draw)
    return {
        "vocab_size": draw.randrange(11, 99),
        "hidden_size": width,
        "num_hidden_layers": draw.randrange(1, 4),
        "num_attention_heads": heads,
        "intermediate_size": draw.randrange(3, 99),
        "max_position_embeddings": draw.randrange(7, 40),
        **maybe(draw, 0.8, type_vocab_size=draw.randrange(1, 4)),
        **maybe(draw, 0.5, tie_word_embeddings=flip(draw)),
        **maybe(draw, 0.4, is_decoder=flip(draw), position_embedding_type="absolute"),
        **maybe(
            draw,
            0.3,
            add_cross_attention=flip(draw),
            classifier_dropout=0.3,
            chunk_size_feed_forward=2,
        ),
        **labels(draw),
    }


def gpt2(draw: random.Random) -> Values:
    heads, width = heads_and_width(draw)
    return {
        "vocab_size": draw.randrange(11, 99),
        "n_embd": width,
        "n_layer": draw.randrange(1, 4),
        "n_head": heads,
        "n_positions": draw.randrange(7, 40),
        **maybe(draw, 0.6, n_inner=draw.choice([None, draw.randrange(3, 99)])),
        **maybe(draw, 0.5, tie_word_embeddings=flip(draw)),
        **maybe(draw, 0.3, add_cross_attention=flip(draw), is_decoder=flip(draw)),
        **maybe(
            draw,
            0.2,
            scale_attn_by_inverse_layer_idx=flip(draw),
            summary_use_proj=flip(draw),
            n_ctx=9,
        ),
        **labels(draw),
    }


def t5(draw: random.Random) -> Values:
    return {
        "vocab_size": draw.randrange(11, 99),
        "d_model": draw.randrange(3, 40),
        "d_kv": draw.randrange(1, 9),
        "d_ff": draw.randrange(3, 99),
        "num_layers": draw.randrange(1, 4),
        "num_heads": draw.randrange(1, 6),
        **maybe(draw, 0.6, num_decoder_layers=draw.choice([None, 1, 2, 3])),
        **maybe(
            draw, 0.8, feed_forward_proj=draw.choice(["relu", "gated-gelu", "gated-silu", "gelu"])
        ),
        **maybe(draw, 0.5, tie_word_embeddings=flip(draw)),
        **maybe(draw, 0.5, relative_attention_num_buckets=2 * draw.randrange(2, 20)),
        **maybe(
            draw,
            0.1,
            is_gated_act=flip(draw),
            is_decoder=flip(draw),
            relative_attention_max_distance=9,
        ),
        **labels(draw),
    }


def seq2seq(draw: random.Random) -> Values:
    heads, width = heads_and_width(draw)
    return {
        "vocab_size": draw.randrange(11, 99),
        "d_model": width,
        "encoder_layers": draw.randrange(1, 4),
        "decoder_layers": draw.randrange(1, 4),
        "encoder_attention_heads": heads,
        "decoder_attention_heads": draw.choice([heads, 1]),
        "encoder_ffn_dim": draw.randrange(3, 99),
        "decoder_ffn_dim": draw.randrange(3, 99),
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "decoder_start_token_id": 2,
        "forced_eos_token_id": 2,
        **maybe(draw, 0.5, tie_word_embeddings=flip(draw)),
        **maybe(draw, 0.2, scale_embedding=flip(draw), encoder_layerdrop=0.1),
        **maybe(
            draw,
            0.1,
            is_decoder=flip(draw),
            normalize_before=flip(draw),
            add_final_layer_norm=flip(draw),
        ),
        **labels(draw),
    }


def bart(draw: random.Random) -> Values:
    return seq2seq(draw) | {"max_position_embeddings": draw.randrange(7, 40)}


def marian(draw: random.Random) -> Values:
    sizes = seq2seq(draw) | {"max_position_embeddings": draw.randrange(7, 40)}
    sizes |= maybe(draw, 0.6, share_encoder_decoder_embeddings=flip(draw))
    target = draw.choice([None, sizes["vocab_size"], draw.randrange(11, 99)])
    return (
        sizes
        | maybe(draw, 0.6, decoder_vocab_size=target)
        | maybe(draw, 0.2, static_position_embeddings=True)
    )


def whisper(draw: random.Random) -> Values:
    return seq2seq(draw) | {
        "num_mel_bins": draw.randrange(3, 20),
        "max_source_positions": draw.randrange(7, 40),
        "max_target_positions": draw.randrange(5, 40),
        **maybe(
            draw,
            0.2,
            use_weighted_layer_sum=flip(draw),
            classifier_proj_size=7,
            apply_spec_augment=flip(draw),
        ),
        "begin_suppress_tokens": None,
    }


def llama_like(draw: random.Random) -> Values:
    heads, width = heads_and_width(draw)
    return {
        "vocab_size": draw.randrange(11, 99),
        "hidden_size": 2 * width,
        "num_hidden_layers": draw.randrange(1, 4),
        "num_attention_heads": 2 * heads,
        "intermediate_size": draw.randrange(3, 99),
        **maybe(draw, 0.7, num_key_value_heads=draw.choice([None, 1, heads, 2 * heads])),
        **maybe(draw, 0.5, head_dim=draw.choice([None, 2, 6, 10])),
        **maybe(draw, 0.5, tie_word_embeddings=flip(draw)),
        **maybe(draw, 0.3, attention_bias=flip(draw), mlp_bias=flip(draw), qkv_bias=flip(draw)),
        **maybe(
            draw,
            0.2,
            max_position_embeddings=9,
            sliding_window=draw.choice([None, 4]),
            pretraining_tp=2,
        ),
        **labels(draw),
    }


def qwen2(draw: random.Random) -> Values:
    return llama_like(draw) | maybe(draw, 0.3, use_sliding_window=flip(draw), max_window_layers=1)


def vit(draw: random.Random) -> Values:
    heads, width = heads_and_width(draw)
    patch = draw.randrange(2, 6)
    return {
        "hidden_size": width,
        "num_hidden_layers": draw.randrange(1, 4),
        "num_attention_heads": heads,
        "intermediate_size": draw.randrange(3, 99),
        "image_size": patch * draw.randrange(2, 5),
        "patch_size": patch,
        **maybe(draw, 0.7, num_channels=draw.randrange(1, 5), qkv_bias=flip(draw)),
        **maybe(draw, 0.4, pooler_output_size=draw.choice([None, width, draw.randrange(1, 20)])),
        **maybe(draw, 0.2, encoder_stride=4, tie_word_embeddings=flip(draw)),
        **labels(draw),
    }


FAMILIES: dict[str, tuple[Callable[[random.Random], Values], list[str]]] = {
    "bert": (
        bert,
        [
            "BertModel",
            "BertForMaskedLM",
            "BertForPreTraining",
            "BertForSequenceClassification",
            "BertForTokenClassification",
            "BertForQuestionAnswering",
            "BertLMHeadModel",
        ],
    ),
    "gpt2": (
        gpt2,
        ["GPT2Model", "GPT2LMHeadModel", "GPT2ForSequenceClassification", "GPT2DoubleHeadsModel"],
    ),
    "t5": (
        t5,
        ["T5Model", "T5ForConditionalGeneration", "T5EncoderModel", "T5ForTokenClassification"],
    ),
    "bart": (
        bart,
        [
            "BartModel",
            "BartForConditionalGeneration",
            "BartForSequenceClassification",
            "BartForCausalLM",
        ],
    ),
    "marian": (marian, ["MarianModel", "MarianMTModel", "MarianForCausalLM"]),
    "llama": (llama_like, ["LlamaModel", "LlamaForCausalLM", "LlamaForSequenceClassification"]),
    "mistral": (
        llama_like,
        ["MistralModel", "MistralForCausalLM", "MistralForTokenClassification"],
    ),
    "qwen2": (qwen2, ["Qwen2Model", "Qwen2ForCausalLM", "Qwen2ForQuestionAnswering"]),
    "whisper": (
        whisper,
        ["WhisperModel", "WhisperForConditionalGeneration", "WhisperForAudioClassification"],
    ),
    "vit": (vit, ["ViTModel", "ViTForImageClassification", "ViTForMaskedImageModeling"]),
}
# The only flags that may be refused here; every other file must be counted.
REFUSED = [
    "architectures: no closed form for this class",
    "add_cross_attention: a BERT with cross-attention is not supported",
    "tie_encoder_decoder: an encoder and a decoder with shared layers are not supported",
    "is_decoder: an encoder with the layers of a decoder is not supported",
    "pruned_heads: pruned heads are not supported",
    "id2label: must name one label at least",
    "num_key_value_heads must divide num_attention_heads",
    "contradicts",
    "missing; must be a whole number",  # where transformers has a size of its own
    "num_attention_heads must divide hidden_size",
]


def config(seed: int) -> tuple[Values, str]:
    """The content of a file and the class that it is of."""
    draw = random.Random(seed)
    family = draw.choice(list(FAMILIES))
    make, classes = FAMILIES[family]
    values = anywhere(draw) | make(draw) | {"model_type": family}
    if draw.random() < 0.1:
        del values[draw.choice([name for name in values if name != "model_type"])]
    if draw.random() < 0.1:
        values[draw.choice([name for name in values if name != "model_type"])] = None
    name = draw.choice(classes[:-1] if draw.random() < 0.8 else classes)
    if name == classes[0] and flip(draw):
        return values | maybe(draw, 0.5, architectures=draw.choice([None, []])), name
    values["architectures"] = [name]
    if flip(draw):  # as transformers itself would save it
        try:
            own = transformers.AutoConfig.for_model(family).__class__.from_dict(values)
        except Exception:  # noqa: BLE001 - a file that transformers does not read is no less a file
            return values, name
        values = json.loads(own.to_json_string(use_diff=flip(draw))) | {"architectures": [name]}
    return values, name


def theirs(values: Values, name: str) -> int | None:
    """Parameters of transformers' class; None where it takes no such config."""
    kind = getattr(transformers, name)
    try:
        own = kind.config_class.from_dict(values)
        with torch.device("meta"):
            model = kind(own)
    except Exception:  # noqa: BLE001 - ValueError, AttributeError, its own StrictDataclass errors, ...
        return None
    return sum(p.numel() for p in model.parameters())


def compare(seeds: range) -> Counter[str]:
    """How many were counted and refused; anything else is an error that names the seed."""
    outcomes = Counter[str]()
    for seed in seeds:
        values, name = config(seed)
        expected = theirs(values, name)
        try:
            ours = huggingface.of_config(
                huggingface.Config(json.loads(json.dumps(values)), "c.json"), Lengths.of(3, 7, 5)
            ).parameters
        except InputError as problem:
            message = str(problem)
            assert "\n" not in message, (seed, message)
            if expected is None:
                outcomes["refused by both"] += 1
                continue
            reasons = [reason for reason in REFUSED if reason in message]
            assert reasons, (seed, message)
            outcomes[f"refused, {reasons[0]}"] += 1
            continue
        if expected is None:
            outcomes["refused by transformers"] += 1
            continue
        assert ours == expected, (seed, name, ours - expected, values)
        outcomes[f"equal, {values['model_type']}"] += 1
    return outcomes


def check(seeds: range) -> Counter[str]:
    outcomes = compare(seeds)
    equal = {what: count for what, count in outcomes.items() if what.startswith("equal")}
    assert len(equal) == len(FAMILIES) and sum(equal.values()) > len(seeds) // 2, outcomes
    return outcomes


def test_a_sample_is_counted_or_refused():
    check(range(SAMPLE))


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_two_thousand_are_counted_or_refused():
    outcomes = check(range(SAMPLE, SAMPLE + ALL))
    print(json.dumps(outcomes, indent=1))
    assert all(any(reason in what for what in outcomes) for reason in REFUSED), outcomes
