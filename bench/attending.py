"""What attention layers attend to: variants of one model, trained for the same number of steps.

    python -m bench.attending                                  on DailyDialog
    python -m bench.attending --corpus multi30k                English to German
    python -m bench.attending --corpus numbers                 made-up numbers and dates to German
    python -m bench.attending --run runs/mine                  measures a run, and trains nothing

For each variant, on validation examples:

    perplexity   per token and per word
    hits@1       the true reply among 20, by likelihood and by PMI (`regard.ranking`)
    end          mean weight on the end token of the source
    entropy      of the weights of a step, in nats, and as a share of that of equal weights
    most         how much the log-probability of a token of the true answer falls, in nats, if the
                 place with the largest weight is hidden (`regard.effect`)
    random       the same for a random place: the mean over all places
    ratio        most / random

Weights are averaged over heads and layers. "unscaled" is `general` attention without its factor
1 / sqrt(D).
"""

from __future__ import annotations

import argparse
import contextlib
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bench import measure
from bench.judging import ValidationReporter
from regard import build, recipe
from regard.bundle import Bundle, load
from regard.effect import effects
from regard.evaluate import likelihood
from regard.layers.attention import General
from regard.ranking import rank_answers
from regard.train import train

EXAMPLES = 200  # examples whose attention is measured
RANKED = 600  # examples whose true answer is ranked
FEWEST_PLACES = 4  # of a source, for its attention to be measured


@contextlib.contextmanager
def unscaled() -> Iterator[None]:
    """General attention without its scale."""
    scaled = General.forward
    General.forward = lambda self, h, keys: scaled(self, h, keys) / self.scale
    try:
        yield
    finally:
        General.forward = scaled


Patch = Callable[[], contextlib.AbstractContextManager[None]]
PLAIN = "encoder.residual=false"
VARIANTS: dict[str, tuple[list[str], Patch]] = {
    "no attention": (["decoder.attention=none"], contextlib.nullcontext),
    "unscaled": ([PLAIN], unscaled),
    "general": ([PLAIN], contextlib.nullcontext),
    "general, residual": (["encoder.residual=true"], contextlib.nullcontext),
    "dot": ([PLAIN, "decoder.attention=dot"], contextlib.nullcontext),
    "scaled dot": ([PLAIN, "decoder.attention=scaled"], contextlib.nullcontext),
    "additive": ([PLAIN, "decoder.attention=additive"], contextlib.nullcontext),
    "before the cell": ([PLAIN, "decoder.attention_order=before_cell"], contextlib.nullcontext),
    "input feeding": ([PLAIN, "decoder.input_feeding=true"], contextlib.nullcontext),
}


def corpus(name: str, data: Path) -> tuple[str, list[str]]:
    """The recipe for a corpus, and the overrides that select the corpus."""
    if name == "dailydialog":
        folder = data / "dailydialog"
        return "chat-attention", ["data.kind=dailydialog", f'data.path="{folder}"']
    if name == "numbers":
        return "translate-attention", []
    paths = [
        f'data.{field}="{data / "multi30k" / file}"'
        for field, file in (
            ("path", "train.en.gz"),
            ("target_path", "train.de.gz"),
            ("valid_path", "val.en.gz"),
            ("valid_target_path", "val.de.gz"),
        )
    ]
    return "multi30k-attention", [*paths, "train.epochs="]


@torch.inference_mode()
def attention_figures(bot: Bundle, examples: int = EXAMPLES) -> dict[str, float]:
    """Where a trained model attends, and what its answers depend on."""
    model = bot.model.eval()
    valid = build.corpus(bot.recipe, bot.tokenizer).valid
    end_weights: list[float] = []
    entropies: list[float] = []
    equal_entropies: list[float] = []
    most: list[float] = []
    random: list[float] = []
    for i in np.linspace(0, len(valid) - 1, min(examples, len(valid))).astype(int):
        index = np.array([i])
        batch = bot.task.batch(valid.gather_sources(index), [valid.target[i]])
        memory = model.encode(batch.raw, batch.mask)
        places = memory.mask.shape[1]
        if places < FEWEST_PLACES:
            continue
        _, attention = model.decoder.forward_with_attention(batch.tokens, memory, capture="cross")
        layers = torch.stack([layer.weights[0] for layer in attention])  # (N, H, T, S)
        weights = layers.mean((0, 1))
        effect = effects(model.decoder, memory, batch.tokens[0], batch.targets[0])
        top_place = weights.argmax(-1, keepdim=True)
        most += effect.gather(1, top_place)[:, 0].tolist()
        random += effect.mean(1).tolist()
        end_weights += weights[:, -1].tolist()
        entropies += torch.special.entr(weights).sum(-1).tolist()
        equal_entropies += [float(np.log(places))] * len(weights)
    return {
        "end": float(np.mean(end_weights)),
        "entropy": float(np.mean(entropies)),
        "entropy_share": float(np.sum(entropies) / np.sum(equal_entropies)),
        "most": float(np.mean(most)),
        "random": float(np.mean(random)),
        "ratio": float(np.mean(most) / np.mean(random)),
    }


def scores(bot: Bundle) -> dict[str, float]:
    """Every figure of a trained model."""
    valid = build.corpus(bot.recipe, bot.tokenizer).valid
    figures = dict(likelihood(bot.model, bot.task, valid).scores)
    if bot.task.ranks_answers:
        ranking = rank_answers(bot.model, bot.task, valid, at_most=RANKED)
        figures |= {name: statistic.value for name, statistic in ranking.statistics.items()}
    if bot.attends():
        figures |= attention_figures(bot)
    return figures


def train_variant(name: str, changes: list[str], args: argparse.Namespace) -> Bundle:
    """A model that is trained for `args.steps` steps, and validated at the end only."""
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        settings = [
            f"train.steps={args.steps}",
            f"train.valid_every={args.steps}",
            f"train.save_every={args.steps}",
            f"train.threads={args.threads}",
            f"seed={args.seed}",
        ]
        train(recipe.load(name, [*changes, *settings]), run, reporter=ValidationReporter())
        bot = load(run)
        shutil.rmtree(run)
    return bot


def show(name: str, figures: dict[str, float]) -> None:
    print(
        f"{name:20}", "  ".join(f"{key} {value:.4g}" for key, value in figures.items()), flush=True
    )


def main() -> None:
    parser = measure.options(__doc__)
    parser.add_argument(
        "--corpus", choices=("dailydialog", "multi30k", "numbers"), default="dailydialog"
    )
    parser.add_argument("--steps", type=int, default=800)
    parser.add_argument("--run", type=Path, help="measure this run, and train nothing")
    parser.add_argument(
        "--variant", choices=list(VARIANTS), action="append", help="default: all of them"
    )
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    if args.run is not None:
        show(args.run.name, scores(load(args.run)))
        return

    name, changes = corpus(args.corpus, args.data)
    figures: dict[str, Any] = {}
    for variant in args.variant or VARIANTS:
        overrides, patch = VARIANTS[variant]
        with patch():
            figures[variant] = scores(train_variant(name, [*changes, *overrides], args))
        show(variant, figures[variant])
    record = {"setting": {"recipe": name, "steps": args.steps}, "figures": figures}
    file = f"attending_{args.corpus}"
    print(measure.write(file, record | {"facts": measure.facts(args)}))


if __name__ == "__main__":
    main()
