"""[train]: optimisation. The section [search] is `regard.search.options.Options`."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, Strict, model_validator

from regard.fields import Count, Rate, Section, Share, Size, Weight, Whole
from regard.marks import Mark

Limit = Annotated[Count, Mark.LIMIT, Mark.TRAINING, Mark.FREE]
BatchSize = Annotated[Size, Mark.BATCHES, Mark.TRAINING, Mark.FREE]


class Train(Section):
    """Training. It ends when the first of the budgets `steps`, `epochs`, `tokens` and `minutes` is
    reached; at least one is needed."""

    steps: Limit | None = None
    """Budget: optimiser steps."""
    epochs: Limit | None = None
    """Budget: passes over the training data."""
    tokens: Limit | None = None
    """Budget: target tokens trained on."""
    minutes: Annotated[Rate, Mark.LIMIT, Mark.TRAINING, Mark.FREE] | None = None
    """Budget: minutes of training."""
    clock: Annotated[Literal["wall", "steps"], Mark.LIMIT, Mark.TRAINING, Mark.FREE] = "wall"
    """What `minutes` and the recorded seconds measure: "wall", all time since the first step, or
    "steps", without validations and checkpoints, which comparisons of models use."""
    batch_tokens: BatchSize = 4096
    """Maximum number of tokens in a batch, source plus target, including padding."""
    batch_examples: BatchSize | None = None
    """Maximum number of examples in a batch; not set: as many as `batch_tokens` allows. A picture
    counts as one token for every 16 pixels."""
    gradient_accumulation_steps: Size = 1
    """Batches whose gradients are accumulated for one optimiser step."""
    batch_growth: Annotated[Size, Mark.TRAINING, Mark.FREE] = 1
    """How many times as many batches the last steps accumulate as the first ones. It rises by 1
    after equal shares of the training budget. A larger batch has a similar effect to a lower
    learning rate (Smith et al. 2018)."""
    optimiser: Annotated[Literal["adamw", "sgd"], Mark.TRAINING] = "adamw"
    """The optimiser: AdamW (Loshchilov & Hutter 2019), or SGD without momentum."""
    learning_rate: Rate = 1e-3
    """Peak learning rate."""
    decoder_learning_rate: Rate = Field(default_factory=lambda data: data["learning_rate"])
    """Peak learning rate of the decoder; derived: `learning_rate`."""
    schedule: Literal["inverse-sqrt", "cosine", "linear", "constant", "epochs"] = "cosine"
    """Learning rate schedule after the warm-up. "cosine" and "linear" reach
    `final_learning_rate_share` at the end of the budget. "epochs" is constant within an epoch: it
    rises linearly from `final_learning_rate_share` to 1 and falls back to it, over the epochs of
    the budget, or over as many as the other budgets allow."""
    warmup_steps: Whole = 100
    """Steps of linear warm-up from 0; with schedule = "epochs", epochs."""
    final_learning_rate_share: Annotated[float, Field(ge=0, le=1)] = 0.05
    """Final learning rate of the schedule, as a share of the peak."""
    max_grad_norm: Weight = 1.0
    """Gradient clipping by norm: the maximum L2 norm of all gradients; 0: no clipping."""
    label_smoothing: Share = 0.1
    """Label smoothing (Szegedy et al. 2016): the probability spread over all tokens."""
    ctc_weight: Annotated[Share, Mark.TRAINING] = 0.0
    """Weight of the CTC auxiliary loss on the encoder's output, against the loss of the decoder
    (Kim et al. 2017). It helps attention to align early in training. For speech only; the decoder
    must be as wide as the encoder."""
    contrastive_weight: Annotated[Weight, Mark.TRAINING, Mark.FREE] = 0.0
    """Weight of a contrastive loss: of two answers to an input, the true one and one to another
    input, the true one should have the higher log-likelihood per token. It makes answers less
    likely that fit any input. For chat and translation; a step takes longer, which the budget does
    not count."""
    contrastive_start: Annotated[Share, Mark.TRAINING, Mark.FREE] = 0.0
    """The share of the training budget after which the contrastive loss begins."""
    unlikelihood_weight: Annotated[Weight, Mark.TRAINING, Mark.FREE] = 0.0
    """Weight of an unlikelihood loss against repetition: the tokens of an answer should be
    improbable after they came once, except where the true answer has them again (Welleck et al.
    2020). Not for labels; a step takes longer, which the budget does not count."""
    weight_decay: Weight = 0.01
    """Decoupled weight decay of AdamW; L2 penalty of SGD."""
    decay_biases_and_norms: bool = False
    """Apply weight decay to biases and norms too, as `torch.optim.AdamW` does by default."""
    betas: Annotated[tuple[Share, Share], Strict(False)] = (0.9, 0.98)
    """AdamW's beta_1 and beta_2."""
    ema_decay: Annotated[Share, Mark.TRAINING] = 0.0
    """Decay of the exponential moving average of the weights (Polyak averaging), which is validated
    and saved in place of the weights; 0: off."""
    valid_every: Whole = 200
    """Steps between validations; 0: validate after each epoch."""
    save_every: Whole = 200
    """Steps between checkpoints; 0: save after each epoch."""
    patience: Whole = 0
    """Early stopping: end training after this many validations without a better score; 0: off."""
    score: (
        Literal["perplexity", "chrf", "bleu", "bleu_4", "exact", "accuracy", "f1", "cer", "wer"]
        | None
    ) = None
    """The validation score that selects the best weights; not set: accuracy for "classify", the
    character error rate for "speech", BLEU-4 for "caption", perplexity otherwise."""
    keep: Literal["auto", "best", "last"] = "auto"
    """The weights kept at the end: those with the best validation score, or the last; "auto" keeps
    the best, or the last if there are fewer than 200 validation examples."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """Precision of the matrix products in training: "bfloat16" is autocast, faster on many GPUs and
    some CPUs. Weights, their updates and the sums of the loss stay float32, and so do validation
    and answers."""
    threads: Annotated[int, Field(ge=1, le=1024)] | None = None
    """CPU threads of PyTorch; not set: PyTorch's own choice."""
    shard: bool = False
    """Under torchrun: spread weights, gradients, optimiser state and averaged weights over the
    processes (FSDP2), for a model that is too large to be trained on one device. Each process
    writes its part of a checkpoint, so the run's folder must be one that all of them reach. With
    one process, it changes nothing."""

    @property
    def batches_a_step(self) -> float:
        """The batches of a step, in the mean over a budget of steps."""
        return self.gradient_accumulation_steps * (1 + self.batch_growth) / 2

    @model_validator(mode="after")
    def _has_a_budget(self) -> Self:
        if self.steps is self.epochs is self.tokens is self.minutes is None:
            raise ValueError(
                "a budget is missing; give at least one of steps, epochs, tokens, minutes"
            )
        return self
