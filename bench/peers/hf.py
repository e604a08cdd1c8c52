"""A small Transformer for translation in `transformers`, used as in its documentation.

MarianMTModel of 4+4 layers, width 128, 4 heads, FFN 256, dropout 0.1, all embeddings tied;
`Seq2SeqTrainer` with `DataCollatorForSeq2Seq` (a batch is a number of sentences, padded to its
longest), sentences grouped by length and the fused AdamW that is its default, label smoothing 0.1.
Greedy `generate` with its cache. Nothing is downloaded.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Sequence

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # read once, on import

import torch
from tokenizers import Tokenizer
from transformers import (
    DataCollatorForSeq2Seq,
    LogitsProcessor,
    LogitsProcessorList,
    MarianConfig,
    MarianMTModel,
    PreTrainedTokenizerFast,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    TrainerCallback,
)

from bench.measure import Speed

Ids = list[int]


def make(vocabulary: int, seed: int, *, pad: int, end: int) -> MarianMTModel:
    """The model, untrained. As in Marian, the padding token starts every answer."""
    torch.manual_seed(seed)
    return MarianMTModel(
        MarianConfig(
            vocab_size=vocabulary,
            d_model=128,
            encoder_layers=4,
            decoder_layers=4,
            encoder_attention_heads=4,
            decoder_attention_heads=4,
            encoder_ffn_dim=256,
            decoder_ffn_dim=256,
            dropout=0.1,
            activation_function="relu",
            scale_embedding=True,
            max_position_embeddings=256,
            pad_token_id=pad,
            eos_token_id=end,
            decoder_start_token_id=pad,
            forced_eos_token_id=None,
        )
    )


def train_steps(
    model: MarianMTModel,
    tokenizer: Tokenizer,
    pairs: Sequence[tuple[Ids, Ids]],
    *,
    sentences: int,
    warmup: int,
    steps: int,
    seed: int,
) -> Speed:
    """The speed of `steps` training steps after `warmup` others.

    It has the target tokens (end tokens included, padding not) and the seconds from the end of the
    last warm-up step to the end of the last step: reading, padding, forward, backward, clipping and
    update all count. The first batch, which has the longest sentence, is a warm-up step.
    """
    special_tokens = {
        "pad_token": tokenizer.id_to_token(_special_tokens(model)[0]),
        "eos_token": "</s>",
    }
    wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special_tokens)
    counting = _Counting(DataCollatorForSeq2Seq(wrapped, model=model))
    clock = _Clock()
    with tempfile.TemporaryDirectory() as folder:
        trainer = Seq2SeqTrainer(
            model=model,
            args=Seq2SeqTrainingArguments(
                output_dir=folder,
                max_steps=warmup + steps,
                per_device_train_batch_size=sentences,
                train_sampling_strategy="group_by_length",
                label_smoothing_factor=0.1,
                learning_rate=1e-3,
                use_cpu=True,
                seed=seed,
                save_strategy="no",
                logging_strategy="no",
                report_to="none",
                disable_tqdm=True,
            ),
            # type: ignore
            train_dataset=[{"input_ids": source, "labels": target} for source, target in pairs],  # pyright: ignore[reportArgumentType]
            data_collator=counting,
            callbacks=[clock],
        )
        trainer.train()
    return Speed(
        sum(counting.targets[warmup : warmup + steps]), clock.ends[-1] - clock.ends[warmup - 1]
    )


def _special_tokens(model: MarianMTModel) -> tuple[int, int]:
    """The ids of the padding and the end token."""
    pad, end = model.config.pad_token_id, model.config.eos_token_id
    assert isinstance(pad, int) and isinstance(end, int)
    return pad, end


@torch.inference_mode()
def greedy(model: MarianMTModel, sources: Sequence[Ids], lengths: Sequence[int]) -> list[Ids]:
    """Greedy answers to a batch of sources, each of its given length, without special tokens."""
    model.eval()
    pad, end = _special_tokens(model)
    rows = torch.nn.utils.rnn.pad_sequence(
        [torch.tensor(source) for source in sources], batch_first=True, padding_value=pad
    )
    generated = model.generate(  # pyright: ignore[reportAttributeAccessIssue]  # a mixin has it
        input_ids=rows,
        attention_mask=(rows != pad).long(),
        max_new_tokens=max(lengths) + 1,
        do_sample=False,
        num_beams=1,
        use_cache=True,
        logits_processor=LogitsProcessorList([_EndAt(lengths, end)]),
    )
    return [
        [token for token in row if token not in (pad, end)] for row in generated[:, 1:].tolist()
    ]


class _EndAt(LogitsProcessor):
    """Ends each row at its length."""

    def __init__(self, lengths: Sequence[int], end: int):
        self.lengths = torch.tensor(lengths)
        self.end = end

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        scores[:, self.end].masked_fill_(input_ids.shape[1] - 1 >= self.lengths, 1e9)
        return scores


def never_end(model: MarianMTModel) -> MarianMTModel:
    """The model with end and padding tokens disabled, so that every answer has the full length.

    Marian adds a bias to its logits in any case, so this costs no time.
    """
    model.final_logits_bias[:, [model.config.pad_token_id, model.config.eos_token_id]] = -torch.inf
    return model


class _Counting:
    """A collator that records the number of target tokens of each batch, in the order of steps."""

    def __init__(self, collator: DataCollatorForSeq2Seq):
        self.collator = collator
        self.targets: list[int] = []

    def __call__(self, features: list[dict]) -> dict:
        batch = self.collator(features)
        self.targets.append(int((batch["labels"] != -100).sum()))
        return batch


class _Clock(TrainerCallback):
    """Records when each step ends."""

    def __init__(self):
        self.ends: list[float] = []

    def on_step_end(self, args, state, control, **kwargs):
        self.ends.append(time.perf_counter())
