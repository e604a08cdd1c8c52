"""How good a model is: likelihood of held-out answers, and scores of its own."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from regard import metrics
from regard.bundle import Bundle
from regard.data.batches import ordered
from regard.data.cache import Part
from regard.errors import DataError
from regard.model import Model
from regard.search import Options
from regard.tasks.chat import Chat


@dataclass(frozen=True)
class Likelihood:
    """-log p of some answers, in nats, end marks included; the tokens and the words it is spread over."""

    nats: float
    tokens: int
    words: int

    @property
    def perplexity(self) -> float:
        """For each token of the codec."""
        return metrics.perplexity(self.nats, self.tokens)

    @property
    def word_perplexity(self) -> float:
        """For each word (and end mark): comparable between codecs."""
        return metrics.perplexity(self.nats, self.words)


@torch.inference_mode()
def likelihood(
    model: Model,
    task: Chat,
    part: Part,
    *,
    batch_tokens: int = 8192,
    at_most: int | None = None,
    between: Callable[[], None] = lambda: None,
) -> Likelihood:
    """Over the whole part, or over its first `at_most` examples. `between` is called before each batch, and may raise
    to end it all."""
    training, nats, tokens, words = model.training, 0.0, 0, 0
    model.eval()
    size = min(len(part), at_most or len(part))
    for index in ordered(part.source.lengths[:size], part.target.lengths[:size], tokens=batch_tokens):
        between()
        batch = task.batch([part.source[i] for i in index], [part.target[i] for i in index])
        nats += float(model.loss(*batch)[1])
        tokens += int(batch.real.sum())
        words += sum(len(metrics.words(part.texts(i).target)) + 1 for i in index)
    model.train(training)
    return Likelihood(nats, tokens, words)


def references(part: Part, *, at_most: int | None = None) -> dict[str, list[str]]:
    """Each prompt with all its answers, in the order of the corpus."""
    grouped: defaultdict[str, list[str]] = defaultdict(list)
    for i in range(len(part)):
        example = part.texts(i)
        if example.source in grouped or at_most is None or len(grouped) < at_most:
            grouped[example.source].append(example.target)
    return dict(grouped)


def answers(
    bundle: Bundle,
    prompts: Sequence[str],
    options: Options | None = None,
    *,
    rows: int = 64,
    between: Callable[[], None] = lambda: None,
) -> list[str]:
    """The texts of the answers, asked in batches of like length; `between` is called before each batch."""
    order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
    found: dict[int, str] = {}
    for start in range(0, len(order), rows):
        between()
        index = order[start : start + rows]
        found |= zip(index, (a.text for a in bundle.ask([prompts[i] for i in index], options)), strict=True)
    return [found[i] for i in range(len(prompts))]


def evaluate(bundle: Bundle, part: Part, *, options: Options | None = None, at_most: int | None = None) -> dict:
    """Every score of the task, and what the references themselves reach where that means something."""
    if not len(part):
        raise DataError("no examples to evaluate on", hint="hold some out with data.valid, or give a file with --data")
    seen = likelihood(bundle.model, bundle.task, part)
    asked = references(part, at_most=at_most)
    own = answers(bundle, list(asked), options)
    people = [several[0] for several in asked.values()]
    return {
        "examples": len(part),
        "prompts": len(asked),
        "perplexity": seen.perplexity,
        "word_perplexity": seen.word_perplexity,
        **bundle.task.scores(own, list(asked.values())),
        "references": {"distinct_2": metrics.distinct(people, 2), "mean_length": metrics.mean_length(people)},
        "samples": [
            {"prompt": prompt, "answer": answer, "references": asked[prompt]}
            for prompt, answer in list(zip(asked, own, strict=True))[:20]
        ],
    }
