"""Search options: the section [search] of a recipe, and the keywords of `ask`.

This module does not load torch.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Annotated, Any

from pydantic import BaseModel, Field, ValidationError, model_validator

from regard.errors import InputError, did_you_mean
from regard.fields import LARGEST, Section, Seed, Size, Whole, allowed, shown
from regard.marks import Mark

# Options that rows of one batch may have different values of and still be searched together.
_OF_EACH_REQUEST = frozenset({"seed", "max_new_tokens"})


class _OneLineErrors(type(BaseModel)):
    """Turns what pydantic says about a wrong argument into one line."""

    def __call__(cls, /, *args: Any, **kwargs: Any) -> Any:
        if args:
            raise InputError("options are given by name", where="search", got=repr(args[0]))
        for name, value in kwargs.items():
            if type(value).__module__ == "numpy" and getattr(value, "ndim", 1) == 0:
                kwargs[name] = value.item()
        try:
            return super().__call__(**kwargs)
        except ValidationError as error:
            problem = error.errors(include_url=False)[0]
        raise _input_error(problem) from None


class Options(Section, metaclass=_OneLineErrors):
    """Decoding. Options that Hugging Face `transformers` has too have the same names here. The
    default, `Options()`, is greedy search.

    >>> Options(num_beams=4, candidates=2).do_sample
    False
    """

    num_beams: Annotated[int, Field(ge=1, le=1024)] = 1
    """Beam width; 1: greedy search, or sampling."""
    length_penalty: Annotated[float, Field(ge=-5, le=5)] = 1.0
    """Exponent of the length by which the log-probability of an answer is divided; larger values
    favour longer answers."""
    early_stopping: bool = False
    """Stop beam search as soon as `num_beams` answers are finished, even if an unfinished one could
    still score higher."""
    do_sample: bool = False
    """Sample each token instead of taking the most likely one."""
    temperature: Annotated[float, Field(ge=1e-6, le=1e6)] = 1.0
    """Softmax temperature of sampling; below 1 sharpens the distribution, above 1 flattens it."""
    top_k: Whole = 0
    """Sample from the `top_k` most likely tokens only (Fan et al. 2018); 0: all tokens."""
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Nucleus sampling (Holtzman et al. 2020): sample from the smallest set of most likely tokens
    whose probabilities sum to at least `top_p`."""
    no_repeat_ngram_size: Whole = 0
    """Block n-grams of this size from occurring twice in an answer; 0: off."""
    repetition_penalty: Annotated[float, Field(ge=1, le=1000)] = 1.0
    """Above 1, makes tokens less likely that are already in the answer (Keskar et al. 2019)."""
    max_new_tokens: Annotated[Size, Mark.SEARCH] = 64
    """Maximum number of tokens of an answer."""
    min_new_tokens: Whole = 0
    """Minimum number of tokens of an answer."""
    candidates: Annotated[int, Field(ge=1, le=1024)] = 1
    """Answers generated for each prompt, from which re-ranking selects the best."""
    retrieved: Annotated[int, Field(ge=0, le=1024)] = 0
    """Training answers that become candidates too: those to the prompts that are most like the
    given one (BM25). The model scores them like its own answers. Needs a run that was trained with
    this option above 0, and so has its training answers with it."""
    min_similarity: Annotated[float, Field(ge=0, le=1000)] = 0.0
    """Retrieve only answers to prompts that are at least so similar to the given one: 0, no word in
    common, to about 1, the same words."""
    retrieval_weight: Annotated[float, Field(ge=0, le=1000)] = 0.0
    """Weight in re-ranking of the similarity of a training answer's prompt to the given one, which
    is 0 for the model's own answers."""
    mmi_weight: Annotated[float, Field(ge=0, le=1000)] = 0.0
    """Weight of the MMI objective (maximum mutual information, Li et al. 2016): this weight times
    log p(answer) without the prompt is subtracted from the score, which penalises generic answers.
    Needs `source.prompt_dropout`."""
    mmi_steps: Whole = 5
    """Number of first tokens to which `mmi_weight` applies during search; re-ranking applies it to
    the whole answer."""
    idf_weight: Annotated[float, Field(ge=0, le=1000)] = 0.0
    """Weight in re-ranking of the mean inverse document frequency (IDF) of an answer's tokens."""
    seed: Seed | None = 1
    """Seed of sampling. Each input has its own random numbers, so its answer does not depend on the
    other inputs of the batch. None, in Python: new ones at every call."""

    @model_validator(mode="after")
    def _possible(self) -> Options:
        if self.min_new_tokens > self.max_new_tokens:
            raise ValueError(
                "min_new_tokens must not be above max_new_tokens; "
                f"got min_new_tokens = {self.min_new_tokens}, "
                f"max_new_tokens = {self.max_new_tokens}"
            )
        if self.candidates * self.max_new_tokens > LARGEST:
            raise ValueError(
                f"candidates times max_new_tokens must be at most {LARGEST:,}; "
                f"got {self.candidates:,} times {self.max_new_tokens:,}"
            )
        if self.retrieved and self.num_beams > 1:
            raise ValueError(
                f"retrieved above 0 needs num_beams = 1; got retrieved = {self.retrieved}, "
                f"num_beams = {self.num_beams}"
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

    @property
    def looks_back(self) -> bool:
        """Whether the choice of a token depends on the previous ones beyond the decoder's state."""
        return self.repetition_penalty != 1 or self.no_repeat_ngram_size > 0

    @property
    def re_ranks(self) -> bool:
        """Whether answers are ranked by more than their likelihood and length."""
        return self.mmi_weight > 0 or self.idf_weight > 0 or self.retrieval_weight > 0

    @property
    def group(self) -> tuple[Any, ...]:
        """What requests must have in common to choose their tokens together."""
        return _group(self)  # type: ignore[arg-type]  # it is frozen, so it has a hash

    def replaced(self, **changes: Any) -> Options:
        """A copy with some options changed.

        >>> Options(num_beams=4).replaced(candidates=4).num_beams
        4
        """
        return Options(**{**dict(self), **changes})


@lru_cache(maxsize=256)  # a server has many requests with the same options
def _group(options: Options) -> tuple[Any, ...]:
    return tuple(value for name, value in options if name not in _OF_EACH_REQUEST)


def _input_error(problem: Any) -> InputError:
    """What is wrong with an argument, in one line."""
    if problem["type"] == "value_error":
        return InputError(str(problem["ctx"]["error"]), where="search")
    name = ".".join(str(part) for part in problem["loc"][:1])
    if problem["type"] == "extra_forbidden":
        hint = did_you_mean(name, Options.model_fields)
        return InputError("no such option", where="search", got=name, hint=hint)
    schema = Options.model_json_schema()["properties"][name]
    hint = "do_sample = false takes the likeliest token" if name == "temperature" else None
    what = f"{name} must be {allowed(schema)}"
    return InputError(what, where="search", got=shown(problem["input"]), hint=hint)
