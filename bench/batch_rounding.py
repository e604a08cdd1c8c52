"""How much logits differ between a row alone and the same row in a batch.

    python -m bench.batch_rounding [RUN ...]

Each decoder reads the same random tokens, 40 a row, once alone and once with 63 other rows, and the
largest difference of its logits is recorded, with and without the C step. The inputs are encoded
alone, or in the batch. The models are untrained, or those of runs. The engine treats
scores as tied that differ by less than `regard.search.choice.TIE_TOLERANCE`, which must be far
larger.
"""

from __future__ import annotations

import os

import numpy as np
import torch
from torch import Tensor

from bench import measure
from regard import build, bundle, recipe
from regard.model import Model
from regard.search.choice import TIE_TOLERANCE
from regard.tasks.task import padded

VOCABULARY = 8000
ROWS = 64
STEPS = 40
RECIPES = ("chat-attention", "chat-transformer", "chat-maclaurin", "chat-gru")


def untrained(name: str, seed: int) -> Model:
    """The model of a recipe."""
    torch.manual_seed(seed)
    return build.model(recipe.load(name), vocabulary=VOCABULARY).eval()


def sources(vocabulary: int, seed: int) -> list[np.ndarray]:
    draw = np.random.default_rng(seed)
    return [draw.integers(4, vocabulary, draw.integers(3, 20)) for _ in range(ROWS)]


@torch.inference_mode()
def logits(model: Model, rows: list[np.ndarray], tokens: Tensor) -> Tensor:
    """The logits (T, B, V) of reading `tokens` after these sources."""
    state = model.decoder.start(model.encode(*padded(rows)))
    steps = []
    for token in tokens.unbind(1):
        step = model.decoder.step(token, state)
        state = step.state
        steps.append(step.logits)
    return torch.stack(steps)


def difference(model: Model, seed: int) -> dict[str, float]:
    """The largest difference of a logit, and the largest logit."""
    vocabulary = model.decoder.vocabulary
    rows = sources(vocabulary, seed)
    draw = torch.Generator().manual_seed(seed)
    tokens = torch.randint(4, vocabulary, (ROWS, STEPS), generator=draw)
    together = logits(model, rows, tokens)
    largest = 0.0
    for i in range(0, ROWS, 4):
        alone = logits(model, rows[i : i + 1], tokens[i : i + 1])
        largest = max(largest, float((alone[:, 0] - together[:, i]).abs().max()))
    return {"difference": largest, "largest_logit": float(together.abs().max())}


def main() -> None:
    parser = measure.options(__doc__)
    parser.add_argument("runs", nargs="*", help="folders of trained runs that read text")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    models = {name: untrained(name, args.seed) for name in RECIPES}
    for run in args.runs:
        loaded = bundle.load(run)
        models[f"trained {loaded.recipe.task}, {loaded.recipe.decoder.kind}"] = loaded.model

    figures = {}
    for name, model in models.items():
        for native in ("1", "0"):
            os.environ["REGARD_NATIVE"] = native
            kind = f"{name}, {'C step' if native == '1' else 'torch only'}"
            figures[kind] = difference(model, args.seed)
            share = figures[kind]["difference"] / TIE_TOLERANCE
            print(
                f"{kind:<50}{figures[kind]['difference']:.1e}   {share:.3f} of TIE_TOLERANCE",
                flush=True,
            )
    record = {"tolerance": TIE_TOLERANCE, "figures": figures, "facts": measure.facts(args)}
    print(measure.write("batch_rounding", record))


if __name__ == "__main__":
    main()
