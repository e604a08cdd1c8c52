"""Laws that hold for every model, checked on the weights of one."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from regard import build
from regard.bundle import WEIGHTS, Bundle
from regard.doctor.checks import Check
from regard.errors import RegardError
from regard.search import Options
from regard.tokenizers import NUM_SPECIAL_TOKENS
from regard.weights import load_tensors, read_tensors, tensors, write_tensors

TOLERANCE = 1e-3  # of logits: sums in single precision, in another order
NEAR_TIE = 1e-3  # of two logits: either token may be chosen
STEPS = 9  # of an answer
SHORT, LONG = 5, 11  # tokens of an input, or tenths of a second


def laws(bot: Bundle) -> Iterator[Check]:
    """Each law in turn. The same inputs every time."""
    with torch.inference_mode():
        yield _check("weights are numbers", lambda: _finite(bot))
        yield _check("step by step = all at once", lambda: _step_by_step(bot))
        yield _check("padding changes nothing", lambda: _padding(bot))
        yield _check("masked places weigh 0", lambda: _masked(bot))
        yield _check("beam 1 = greedy", lambda: _greedy(bot))
        yield _check("save then load = before", lambda: _saved(bot))


class _Skipped(Exception):
    """The law says nothing about this model."""


def _check(name: str, law: Callable[[], str | None]) -> Check:
    """A law returns what is wrong, or None."""
    try:
        wrong = law()
    except _Skipped as reason:
        return Check(name, "skipped", str(reason))
    except RegardError as problem:
        wrong = str(problem)
    if wrong is None:
        return Check(name, "ok", "holds for these weights")
    hint = "the weights or this installation are at fault; compare with: REGARD_NATIVE=0"
    return Check(name, "failed", wrong, hint)


def _rows(bot: Bundle) -> list[np.ndarray]:
    """A short and a long input, drawn with a fixed seed."""
    draw = np.random.default_rng(1)
    example = bot.task.source.example()
    if example.ndim == 3:  # a picture
        return [draw.integers(0, 256, example.shape, np.uint8) for _ in range(2)]
    if example.dtype == np.int16:  # a second of sound
        lengths = (len(example) * SHORT // 10, len(example) * LONG // 10)
        return [draw.integers(-9000, 9000, length).astype(np.int16) for length in lengths]
    vocabulary = bot.tokenizer.source_size or bot.tokenizer.size
    tokens = range(NUM_SPECIAL_TOKENS, vocabulary)
    rows = [draw.choice(tokens, length) for length in (SHORT, LONG)]
    return [np.concatenate([example, row]) for row in rows]


def _memory(bot: Bundle, rows: list[np.ndarray]):
    raw, mask = bot.task.sources(rows)
    device = bot.model.device
    return bot.model.encode(raw.to(device), mask.to(device))


def _is_label(bot: Bundle) -> bool:
    return bot.recipe.task in ("classify", "blank")


def _tokens(bot: Bundle) -> Tensor:
    """Two answers of random tokens, after the start token."""
    draw = torch.Generator("cpu").manual_seed(1)
    length = 1 if _is_label(bot) else STEPS
    tokens = torch.randint(NUM_SPECIAL_TOKENS, bot.tokenizer.size, (2, length), generator=draw)
    tokens[:, 0] = bot.task.special_tokens.start
    return tokens.to(bot.model.device)


def _difference(a: Tensor, b: Tensor) -> float:
    """The largest difference; tokens that a classifier never gives have -inf in both."""
    return torch.where(a == b, 0.0, a - b).abs().max().item()


def _too_large(difference: float) -> str | None:
    if difference <= TOLERANCE:
        return None
    return f"logits differ by {difference:.2g}, more than {TOLERANCE:g}"


def _finite(bot: Bundle) -> str | None:
    for name, tensor in tensors(bot.model).items():
        if not tensor.isfinite().all():
            return f"{name} has values that are not finite"
    return None


def _step_by_step(bot: Bundle) -> str | None:
    decoder = bot.model.decoder
    memory = _memory(bot, _rows(bot))
    tokens = _tokens(bot)
    state = decoder.start(memory)
    logits = []
    for token in tokens.unbind(1):
        step = decoder.step(token, state)
        state = step.state
        logits.append(step.logits)
    return _too_large(_difference(torch.stack(logits, 1), decoder(tokens, memory)))


def _padding(bot: Bundle) -> str | None:
    short, long = _rows(bot)
    if len(short) == len(long):
        raise _Skipped("all inputs of this model have the same size")
    decoder = bot.model.decoder
    tokens = _tokens(bot)
    alone = decoder(tokens[:1], _memory(bot, [short]))
    padded = decoder(tokens, _memory(bot, [short, long]))[:1]
    return _too_large(_difference(alone, padded))


def _masked(bot: Bundle) -> str | None:
    memory = _memory(bot, _rows(bot))
    step = bot.model.decoder.step(_tokens(bot)[:, 0], bot.model.decoder.start(memory))
    if step.weights is None:
        raise _Skipped("this model has no attention weights over its input")
    if memory.mask.all():
        raise _Skipped("all inputs of this model have the same size")
    hidden = ~memory.mask[:, None, :].expand_as(step.weights)
    largest = step.weights[hidden].abs().max().item()
    return None if largest == 0 else f"a padded place has weight {largest:.2g}"


def _greedy(bot: Bundle) -> str | None:
    if _is_label(bot):
        options = Options(max_new_tokens=1)
    else:
        options = Options(max_new_tokens=STEPS)
    rows = _rows(bot)
    answers = bot.answer_rows(rows, options)
    for row, (answer,) in zip(rows, answers, strict=True):
        if not _follows(bot, row, answer.tokens):
            return f"the answer {answer.text!r} is not made of the likeliest tokens"
    return None


def _follows(bot: Bundle, row: np.ndarray, answer: tuple[int, ...] | list[int]) -> bool:
    """Whether each token of the answer was the likeliest, or nearly so."""
    special = bot.task.special_tokens
    decoder = bot.model.decoder
    state = decoder.start(_memory(bot, [row]))
    token = special.start
    for expected in answer:
        step = decoder.step(torch.tensor([token], device=bot.model.device), state)
        state = step.state
        logits = step.logits[0].clone()
        logits[list(special.never)] = -torch.inf
        if logits.max() - logits[expected] > NEAR_TIE:
            return False
        token = expected
    return True


def _saved(bot: Bundle) -> str | None:
    before = tensors(bot.model)
    tokenizer = bot.tokenizer
    with tempfile.TemporaryDirectory(prefix="regard-doctor-") as folder:
        file = Path(folder) / WEIGHTS
        write_tensors(file, before)
        model = build.model(
            bot.recipe, vocabulary=tokenizer.size, source_vocabulary=tokenizer.source_size
        )
        load_tensors(model, read_tensors(file), file)
    after = tensors(model)
    for name, tensor in before.items():
        if not torch.equal(tensor.cpu(), after[name]):
            return f"{name} is not what was saved"
    return None
