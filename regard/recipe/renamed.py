"""Former names of fields, sections and kinds, for the hints that answer an old recipe."""

from __future__ import annotations

_TRAIN = {
    "accumulate": "gradient_accumulation_steps",
    "align": "ctc_weight",
    "average": "ema_decay",
    "clip": "max_grad_norm",
    "decay_vectors": "decay_biases_and_norms",
    "decoder_rate": "decoder_learning_rate",
    "final_rate": "final_learning_rate_share",
    "rate": "learning_rate",
    "smoothing": "label_smoothing",
    "warmup": "warmup_steps",
}
_SOURCE = {
    "around": "padding_mode",
    "colours": "channels_in",
    "cut": "random_crop",
    "empty": "prompt_dropout",
    "flip": "horizontal_flip",
    "halve": "downsample",
    "reach": "kernel_size",
    "span": "dynamic_range",
    "speed": "speed_perturbation",
    "tempo": "tempo_perturbation",
    "tilt": "spectral_tilt",
    "widest_mels": "mel_mask_width",
    "widest_time": "time_mask_width",
}
FIELDS = {
    "data": {"cut": "truncate", "made_with": "seed"},
    "source": _SOURCE,
    "encoder": {"ffn": "ffn_width", "reach": "kernel_size", "vectors": "embedding_width"},
    "decoder": {"ffn": "ffn_width", "looks": "attention_order", "reads": "pooling"},
    "train": _TRAIN,
    "search": {
        "anti_prior": "mmi_weight",
        "anti_prior_steps": "mmi_steps",
        "rarity": "idf_weight",
    },
}
SECTIONS = {"codec": "tokenizer"}
KINDS = {
    "tokenizer": {"pieces": "bpe"},
    "encoder": {"flat": "identity", "two-way": "blank"},
    "decoder": {"one-shot": "classifier", "recurrent-block": "recurrent-cross-attention"},
}
