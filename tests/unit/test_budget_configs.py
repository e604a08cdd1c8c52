"""Hugging Face's config.json: the closed forms equal the parameters of transformers' own class,
made on the meta device, and the multiplications that its forward pass makes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from regard.budget import huggingface
from regard.budget.closed_form.layers import Lengths
from regard.budget.trace import Trace
from regard.errors import InputError

pytestmark = pytest.mark.filterwarnings("ignore")
transformers.logging.set_verbosity_error()
B, S, T = 3, 7, 5
EVERY_CHECK: Any = list(HealthCheck)  # Any: its metaclass hides the type
PRIMES = st.sampled_from([2, 3, 5, 7, 11, 13])


def sizes(draw: Any) -> tuple[int, int, int, int]:
    """heads, width of one (even, for rotary positions), width inside, vocabulary."""
    return draw(PRIMES), 2 * draw(PRIMES), draw(st.integers(3, 99)), draw(st.integers(11, 99))


@st.composite
def bert(draw: Any) -> Any:
    heads, head, inner, words = sizes(draw)
    make: Any = transformers.BertConfig  # takes the fields of its base class too
    return make(
        vocab_size=words,
        hidden_size=heads * head,
        num_hidden_layers=draw(st.integers(1, 3)),
        num_attention_heads=heads,
        intermediate_size=inner,
        max_position_embeddings=draw(st.integers(S, 40)),
        type_vocab_size=draw(st.integers(1, 3)),
        num_labels=draw(st.integers(2, 9)),
        tie_word_embeddings=draw(st.booleans()),
    )


@st.composite
def gpt2(draw: Any) -> Any:
    heads, head, inner, words = sizes(draw)
    make: Any = transformers.GPT2Config
    return make(
        vocab_size=words,
        n_embd=heads * head,
        n_layer=draw(st.integers(1, 3)),
        n_head=heads,
        n_positions=draw(st.integers(T, 40)),
        n_inner=draw(st.sampled_from([None, inner])),
        add_cross_attention=draw(st.booleans()),
        tie_word_embeddings=draw(st.booleans()),
    )


@st.composite
def t5(draw: Any) -> Any:
    heads, head, inner, words = sizes(draw)
    make: Any = transformers.T5Config
    return make(
        vocab_size=words,
        d_model=draw(st.integers(3, 40)),
        d_kv=head,
        d_ff=inner,
        num_layers=draw(st.integers(1, 3)),
        num_decoder_layers=draw(st.integers(1, 3)),
        num_heads=heads,
        feed_forward_proj=draw(st.sampled_from(["relu", "gated-gelu"])),
        tie_word_embeddings=draw(st.booleans()),
    )


def seq2seq(draw: Any, make: Any, **more: Any) -> Any:
    heads, head, inner, words = sizes(draw)
    return make(
        vocab_size=words,
        d_model=heads * head,
        encoder_layers=draw(st.integers(1, 3)),
        decoder_layers=draw(st.integers(1, 3)),
        encoder_attention_heads=heads,
        decoder_attention_heads=draw(st.sampled_from([heads, 1])),
        encoder_ffn_dim=inner,
        decoder_ffn_dim=inner + 2,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=2,
        forced_eos_token_id=2,
        tie_word_embeddings=draw(st.booleans()),
        **more,
    )


@st.composite
def bart(draw: Any) -> Any:
    return seq2seq(draw, transformers.BartConfig, max_position_embeddings=draw(st.integers(S, 40)))


@st.composite
def marian(draw: Any) -> Any:
    return seq2seq(
        draw, transformers.MarianConfig, max_position_embeddings=draw(st.integers(S, 40))
    )


@st.composite
def whisper(draw: Any) -> Any:
    return seq2seq(
        draw,
        transformers.WhisperConfig,
        num_mel_bins=draw(st.integers(3, 20)),
        max_source_positions=draw(st.integers(S, 40)),
        max_target_positions=draw(st.integers(T, 40)),
        begin_suppress_tokens=None,
    )


def llama_like(draw: Any, make: Any, **more: Any) -> Any:
    heads, head, inner, words = sizes(draw)
    return make(
        vocab_size=words,
        hidden_size=heads * 2 * head,
        num_hidden_layers=draw(st.integers(1, 3)),
        num_attention_heads=heads * 2,
        num_key_value_heads=draw(st.sampled_from([heads, 2 * heads, 1])),
        intermediate_size=inner,
        tie_word_embeddings=draw(st.booleans()),
        **more,
    )


@st.composite
def llama(draw: Any) -> Any:
    biased, wide = (
        {"attention_bias": draw(st.booleans()), "mlp_bias": draw(st.booleans())},
        draw(st.booleans()),
    )
    return llama_like(draw, transformers.LlamaConfig, **biased, **({"head_dim": 6} if wide else {}))


@st.composite
def mistral(draw: Any) -> Any:
    return llama_like(draw, transformers.MistralConfig)


@st.composite
def qwen2(draw: Any) -> Any:
    return llama_like(draw, transformers.Qwen2Config)


@st.composite
def vit(draw: Any) -> Any:
    heads, head, inner, _ = sizes(draw)
    patch = draw(st.integers(2, 5))
    make: Any = transformers.ViTConfig
    return make(
        hidden_size=heads * head,
        num_hidden_layers=draw(st.integers(1, 3)),
        num_attention_heads=heads,
        intermediate_size=inner,
        image_size=patch * draw(st.integers(2, 4)),
        patch_size=patch,
        num_channels=draw(st.integers(1, 4)),
        qkv_bias=draw(st.booleans()),
        num_labels=draw(st.integers(2, 9)),
    )


CLASSES = {
    "BertModel": bert,
    "BertForMaskedLM": bert,
    "BertForPreTraining": bert,
    "BertForSequenceClassification": bert,
    "BertForTokenClassification": bert,
    "GPT2Model": gpt2,
    "GPT2LMHeadModel": gpt2,
    "T5Model": t5,
    "T5ForConditionalGeneration": t5,
    "T5EncoderModel": t5,
    "BartModel": bart,
    "BartForConditionalGeneration": bart,
    "MarianModel": marian,
    "MarianMTModel": marian,
    "LlamaModel": llama,
    "LlamaForCausalLM": llama,
    "MistralForCausalLM": mistral,
    "Qwen2ForCausalLM": qwen2,
    "WhisperModel": whisper,
    "WhisperForConditionalGeneration": whisper,
    "ViTModel": vit,
    "ViTForImageClassification": vit,
}


def inputs(name: str, config: Any) -> dict[str, torch.Tensor]:
    def ids(length: int) -> torch.Tensor:
        return torch.zeros(B, length, dtype=torch.long)

    if name.startswith("ViT"):
        return {
            "pixel_values": torch.zeros(
                B, config.num_channels, config.image_size, config.image_size
            )
        }
    if name.startswith("Whisper"):
        sound = torch.zeros(B, config.num_mel_bins, 2 * config.max_source_positions)
        return {"input_features": sound, "decoder_input_ids": ids(T)}
    if name.startswith(("Bert", "T5Encoder")):
        return {"input_ids": ids(S)}
    if name.startswith(("T5", "Bart", "Marian")):
        return {"input_ids": ids(S), "decoder_input_ids": ids(T)}
    if name.startswith("GPT2") and config.add_cross_attention:
        return {"input_ids": ids(T), "encoder_hidden_states": torch.zeros(B, S, config.n_embd)}
    return {"input_ids": ids(T)}


def budget(config: Any, name: str) -> Any:
    """By way of the file's own JSON, as a person has it."""
    values = json.loads(config.to_json_string()) | {"architectures": [name]}
    return huggingface.of_config(huggingface.Config(values, "config.json"), Lengths.of(B, S, T))


@pytest.mark.parametrize("name", CLASSES)
@settings(max_examples=5, deadline=None, suppress_health_check=EVERY_CHECK, derandomize=True)
@given(data=st.data())
def test_parameters_are_those_of_the_class(name: str, data: st.DataObject):
    config = data.draw(CLASSES[name]())
    with torch.device("meta"):
        model = getattr(transformers, name)(config)
    assert budget(config, name).parameters == sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize("name", CLASSES)
@settings(
    max_examples=1,
    deadline=None,
    suppress_health_check=EVERY_CHECK,
    derandomize=True,
    phases=[Phase.generate],
)
@given(data=st.data())
def test_multiplications_are_those_it_makes(name: str, data: st.DataObject):
    config = data.draw(CLASSES[name]())
    model = getattr(transformers, name)(config).eval()
    cached = {} if name.startswith(("ViT", "Bert", "T5Encoder")) else {"use_cache": False}
    with torch.no_grad(), Trace(refuse=False) as trace:
        model(**inputs(name, config), **cached)
    assert budget(config, name).multiplications["forward"] == trace.products


KNOWN = {  # as their authors and model cards have them, rounded as they round
    "bert-base-uncased": (transformers.BertConfig(), "BertModel", 109_482_240),
    "gpt2": (transformers.GPT2Config(), "GPT2LMHeadModel", 124_439_808),
    "t5-small": (transformers.T5Config(), "T5ForConditionalGeneration", 60_506_624),
    "vit-base": (transformers.ViTConfig(), "ViTModel", 86_389_248),
}


@pytest.mark.parametrize("name", KNOWN)
def test_well_known_sizes(name: str):
    config, kind, parameters = KNOWN[name]
    assert budget(config, kind).parameters == parameters


@pytest.mark.parametrize("name", ["GPT2Model", "GPT2LMHeadModel"])
def test_a_gpt2_that_attends_to_a_memory(name: str):
    config = transformers.GPT2Config(
        vocab_size=31, n_embd=12, n_layer=2, n_head=3, n_positions=20, add_cross_attention=True
    )
    model = getattr(transformers, name)(config).eval()
    ours = budget(config, name)
    assert ours.parameters == sum(p.numel() for p in model.parameters())
    memory = torch.zeros(B, S, 12)
    with torch.no_grad(), Trace(refuse=False) as trace:
        model(torch.zeros(B, T, dtype=torch.long), encoder_hidden_states=memory, use_cache=False)
    assert ours.multiplications["forward"] == trace.products
    with torch.no_grad():
        past = model(
            torch.zeros(1, T - 1, dtype=torch.long),
            encoder_hidden_states=memory[:1],
            use_cache=True,
        ).past_key_values
        with Trace(refuse=False) as trace:
            model(
                torch.zeros(1, 1, dtype=torch.long),
                encoder_hidden_states=memory[:1],
                past_key_values=past,
            )
    assert ours.multiplications["token"] == trace.products
    assert ours.memory["state"] == 4 * 2 * 2 * 12 * (
        S + T
    )  # float32, keys and values, layers, width


def test_a_token_costs_what_the_cache_leaves_to_do():
    config = transformers.GPT2Config(vocab_size=31, n_embd=12, n_layer=2, n_head=3, n_positions=20)
    model = transformers.GPT2LMHeadModel(config).eval()
    ours = budget(config, "GPT2LMHeadModel")
    with torch.no_grad():
        past = model(torch.zeros(1, T - 1, dtype=torch.long), use_cache=True).past_key_values
        with Trace(refuse=False) as trace:
            model(torch.zeros(1, 1, dtype=torch.long), past_key_values=past, use_cache=True)
    assert ours.multiplications["token"] == trace.products
    assert ours.multiplications["growth"] == 2 * 2 * 12
    assert ours.memory["state_token"] == 2 * 2 * 12 * 4


# ------------------------------------------------------------------------------------------- errors

GPT2 = {
    "model_type": "gpt2",
    "vocab_size": 31,
    "n_embd": 12,
    "n_layer": 2,
    "n_head": 3,
    "n_positions": 20,
}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"model_type": "mamba"},
            'c.json: model_type: no such family, or not one with a closed form; got "mamba"; ',
        ),
        (
            {"model_type": None},
            "c.json: model_type: no such family, or not one with a closed form; got null; known: ",
        ),
        ({"n_head": 5}, "c.json: n_head must divide n_embd; got 5 and 12"),
        ({"n_embd": None}, "c.json: n_embd: missing; must be a whole number >= 1"),
        (
            {"n_layer": -2},
            "c.json: n_layer: must be a whole number >= 1 and <= 1,099,511,627,776; got -2",
        ),
        (
            {"n_layer": "2"},
            'c.json: n_layer: must be a whole number >= 1 and <= 1,099,511,627,776; got "2"',
        ),
        (
            {"n_layer": True},
            "c.json: n_layer: must be a whole number >= 1 and <= 1,099,511,627,776; got true",
        ),
        (
            {"pruned_heads": {"0": [1]}},
            'c.json: pruned_heads: pruned heads are not supported; got {"0": [1]}',
        ),
        (
            {"hidden_size": 8},
            "c.json: hidden_size: contradicts n_embd, which is the same size; got 8 and 12",
        ),
        (
            {"add_cross_attention": "yes"},
            'c.json: add_cross_attention: must be true or false; got "yes"',
        ),
        ({"tie_word_embeddings": 1}, "c.json: tie_word_embeddings: must be true or false; got 1"),
        (
            {"n_positions": 4},
            "length: longer than the model's positions: at most 4; got 5; n_positions in c.json",
        ),
        (
            {"architectures": ["GPT2LMHeadModle"]},
            (
                'c.json: architectures: no closed form for this class; got "GPT2LMHeadModle"; '
                'did you mean "GPT2LMHeadModel"?'
            ),
        ),
    ],
)
def test_mistakes(changes: dict[str, Any], said: str):
    values = GPT2 | {"architectures": ["GPT2LMHeadModel"]} | changes
    with pytest.raises(InputError) as caught:
        huggingface.of_config(huggingface.Config(values, "c.json"), Lengths.of(B, S, T))
    assert str(caught.value).startswith(said) if said.endswith(" ") else str(caught.value) == said


def test_more_mistakes(tmp_path: Path):
    file = tmp_path / "config.json"
    for content, said in [("{", "not JSON"), ("[1]", "not a config.json: it must hold one object")]:
        file.write_text(content)
        with pytest.raises(InputError, match=f"{file}: {said}"):
            huggingface.read(file)
    llama = json.loads(transformers.LlamaConfig(num_key_value_heads=8).to_json_string()) | {
        "num_key_value_heads": 5
    }
    with pytest.raises(
        InputError, match="num_key_value_heads must divide num_attention_heads; got 5 and 32"
    ):
        huggingface.of_config(huggingface.Config(llama, "c.json"), Lengths.of(B, S, T))
    vit = json.loads(transformers.ViTConfig().to_json_string()) | {"patch_size": 15}
    with pytest.raises(InputError, match="patch_size must divide image_size; got 15 and 224"):
        huggingface.of_config(huggingface.Config(vit, "c.json"), Lengths.of(B, S, T))
    for kind, changes, said in [
        (
            "Bert",
            {"add_cross_attention": True},
            "add_cross_attention: a BERT with cross-attention is not supported",
        ),
        (
            "Bart",
            {"tie_encoder_decoder": True},
            "tie_encoder_decoder: an encoder and a decoder with shared layers",
        ),
        (
            "T5",
            {"tie_encoder_decoder": True},
            "tie_encoder_decoder: an encoder and a decoder with shared layers",
        ),
        (
            "T5",
            {"is_decoder": True, "architectures": ["T5EncoderModel"]},
            "is_decoder: an encoder with the layers of a decoder is not supported; got true",
        ),
        (
            "ViT",
            {"id2label": {}, "architectures": ["ViTForImageClassification"]},
            "id2label: must name one label at least; got {}",
        ),
    ]:
        values = json.loads(getattr(transformers, f"{kind}Config")().to_json_string()) | changes
        with pytest.raises(InputError, match=f"c.json: {said}"):
            huggingface.of_config(huggingface.Config(values, "c.json"), Lengths.of(B, S, T))


def test_sizes_under_the_names_of_other_families():
    names = {
        "n_embd": "hidden_size",
        "n_layer": "num_hidden_layers",
        "n_head": "num_attention_heads",
    }
    values = {names.get(name, name): value for name, value in GPT2.items()}
    both = GPT2 | {"hidden_size": 12}
    counts = [
        huggingface.of_config(huggingface.Config(each, "c.json"), Lengths.of(B, S, T)).parameters
        for each in (GPT2, values, both)
    ]
    assert len(set(counts)) == 1
