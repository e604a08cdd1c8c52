"""[train] and [search]: how a model learns, and how it answers."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, Strict, model_validator

from regard.recipe.fields import LARGEST, Count, Rate, Section, Seed, Share, Size, Weight, Whole


class Train(Section):
    """How the model learns. Of the budgets steps, epochs, tokens and minutes the first reached
    ends it."""

    steps: Count | None = None
    """Budget: updates of the weights."""
    epochs: Count | None = None
    """Budget: passes over the training data."""
    tokens: Count | None = None
    """Budget: target tokens learned from."""
    minutes: Rate | None = None
    """Budget: minutes of training."""
    batch_tokens: Size = 4096
    """Most tokens in a batch, source and target together and padding included."""
    batch_examples: Size | None = None
    """Most examples in a batch; not given: as many as `batch_tokens` allows. A picture counts as
    a token for each 16 pixels."""
    gradient_accumulation_steps: Size = 1
    """Batches gathered into one update."""
    optimiser: Literal["adamw", "sgd"] = "adamw"
    """What turns gradients into steps; sgd is the plain one, without momentum."""
    learning_rate: Rate = 1e-3
    """Highest learning rate."""
    decoder_learning_rate: Rate = Field(default_factory=lambda data: data["learning_rate"])
    """Highest learning rate of the decoder; derived: the same rate."""
    schedule: Literal["inverse-sqrt", "cosine", "linear", "constant", "epochs"] = "cosine"
    """How the rate falls after the warm-up; cosine and linear reach `final_learning_rate_share`
    at the end of the budget. With epochs it stays the same within a pass over the data: it rises
    from `final_learning_rate_share` and falls back to it, by equal steps, over the passes of the
    budget `epochs`, or else over as many as the other budgets leave time for."""
    warmup_steps: Whole = 100
    """Steps over which the rate rises from 0; with schedule = "epochs", passes."""
    final_learning_rate_share: Annotated[float, Field(ge=0, le=1)] = 0.05
    """Share of the rate left at the end of a cosine or linear schedule."""
    max_grad_norm: Weight = 1.0
    """Longest gradient allowed, longer ones are shortened to it; 0: any."""
    label_smoothing: Share = 0.1
    """Share of the probability that label smoothing gives to all other tokens."""
    ctc_weight: Share = 0.0
    """Share of the loss that asks the memory itself to spell the answer in order (CTC), so that
    attention soon has something to find; for speech, with a decoder as wide as the encoder."""
    weight_decay: Weight = 0.01
    """Pull of the weights towards 0, decoupled from the gradient."""
    decay_biases_and_norms: bool = False
    """Whether biases and norms are pulled too, as by torch's own AdamW."""
    betas: Annotated[tuple[Share, Share], Strict(False)] = (0.9, 0.98)
    """Decay of AdamW's two running means."""
    ema_decay: Share = 0.0
    """Decay of a running mean of the weights, which is then what is validated and kept; 0: off."""
    valid_every: Whole = 200
    """Steps between validations; 0: one after each epoch."""
    save_every: Whole = 200
    """Steps between checkpoints; 0: one after each epoch."""
    patience: Whole = 0
    """Validations without a better score after which training ends; 0: never."""
    score: (
        Literal["perplexity", "chrf", "bleu", "bleu_4", "exact", "accuracy", "f1", "cer", "wer"]
        | None
    ) = None
    """The validation score that says which weights are best; not given: the task's own, which is
    accuracy to classify, the character error rate for speech, bleu_4 to caption and perplexity
    otherwise."""
    keep: Literal["auto", "best", "last"] = "auto"
    """Which weights the run ends with; auto: the best, unless fewer than 200 examples are held
    out to tell them by."""
    threads: Annotated[int, Field(ge=1, le=1024)] | None = None
    """Threads of the processor; not given: as many as torch finds."""

    @model_validator(mode="after")
    def _ends(self) -> Self:
        if self.steps is self.epochs is self.tokens is self.minutes is None:
            raise ValueError(
                "a budget is missing; give at least one of steps, epochs, tokens, minutes"
            )
        return self


class Search(Section):
    """How answers are found. What people know from elsewhere has the name it has there."""

    num_beams: Annotated[int, Field(ge=1, le=1024)] = 1
    """Answers followed side by side; 1: greedy."""
    length_penalty: Annotated[float, Field(ge=-5, le=5)] = 1.0
    """Power of the length by which an answer's score is divided; larger favours long answers."""
    early_stopping: bool = False
    """Beam search ends with `num_beams` finished answers, even if one under way might still beat
    them."""
    do_sample: bool = False
    """Draws each token instead of taking the likeliest."""
    temperature: Annotated[float, Field(ge=1e-6, le=1e6)] = 1.0
    """Below 1 sampling is bolder about the likely tokens, above 1 it is more even."""
    top_k: Whole = 0
    """Sampling draws among this many of the likeliest tokens; 0: all."""
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Sampling draws among the likeliest tokens that together have this probability."""
    no_repeat_ngram_size: Whole = 0
    """No run of this many tokens comes twice in an answer; 0: any may."""
    repetition_penalty: Annotated[float, Field(ge=1, le=1000)] = 1.0
    """Above 1, tokens already in the answer are less likely to come again."""
    max_new_tokens: Size = 64
    """Most tokens of an answer."""
    min_new_tokens: Whole = 0
    """Fewest tokens of an answer."""
    candidates: Annotated[int, Field(ge=1, le=1024)] = 1
    """Answers found for each prompt, of which re-ranking picks one."""
    mmi_weight: Annotated[float, Field(ge=0, le=1000)] = 0.0
    """Weight of the answer's likelihood without its prompt, which is subtracted (maximum mutual
    information), so that what fits every prompt loses; needs `source.prompt_dropout`."""
    mmi_steps: Whole = 5
    """First tokens of an answer on which `mmi_weight` acts in the search itself; re-ranking uses
    the whole answer."""
    idf_weight: Annotated[float, Field(ge=0, le=1000)] = 0.0
    """Weight of the mean rarity (IDF) of an answer's words in re-ranking."""
    seed: Seed = 1
    """Decides every draw of sampling, together with the input: the same input has the same
    answer, alone and in any company."""

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.min_new_tokens > self.max_new_tokens:
            raise ValueError(
                "min_new_tokens must not be above max_new_tokens; "
                f"got min_new_tokens = {self.min_new_tokens}, max_new_tokens = {self.max_new_tokens}"
            )
        if self.candidates * self.max_new_tokens > LARGEST:
            raise ValueError(
                f"candidates times max_new_tokens must be at most {LARGEST:,}; "
                f"got {self.candidates:,} times {self.max_new_tokens:,}"
            )
        if self.do_sample and self.num_beams > 1:
            raise ValueError(
                f"do_sample = true needs num_beams = 1; got num_beams = {self.num_beams}"
            )
        if not self.do_sample and self.num_beams < self.candidates:
            raise ValueError(
                "candidates above 1 need do_sample = true or as many num_beams; "
                f"got candidates = {self.candidates}, num_beams = {self.num_beams}"
            )
        return self
