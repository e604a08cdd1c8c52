"""What attention gains: chat-attention against chat-lstm, the same model without attention.

    python -m bench.attention

Both take the same number of steps, on Cornell, where a reply seldom depends on single words of the
prompt, and on Multi30k English to German, where it nearly always does. The figure is perplexity per
token on the 5 % that the recipe holds out.
"""

from __future__ import annotations

import gzip
import tempfile
from pathlib import Path

import torch

from bench import measure, ours
from bench.cornell import split
from regard import build, recipe
from regard.bundle import load
from regard.evaluate import likelihood
from regard.train import train

RECIPES = {"peer": "chat-lstm", "ours": "chat-attention"}


def cornell(data: Path) -> list[tuple[str, str]]:
    return split(data)[0]


def multi30k(data: Path) -> list[tuple[str, str]]:
    english, german = (
        gzip.decompress((data / "multi30k" / f"train.{language}.gz").read_bytes()).decode()
        for language in ("en", "de")
    )
    return list(zip(english.splitlines(), german.splitlines(), strict=True))


def perplexity(name: str, pairs: list[tuple[str, str]], steps: int, seed: int) -> float:
    """Validation perplexity of a recipe after `steps` steps on the pairs."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "pairs.tsv"
        run = Path(folder) / "run"
        file.write_text(
            "".join(f"{prompt}\t{reply}\n" for prompt, reply in pairs), encoding="utf-8"
        )
        changes = ["data.kind=pairs", f'data.path="{file}"', f"train.steps={steps}", f"seed={seed}"]
        train(
            recipe.load(name, [*changes, f"train.valid_every={steps}"]),
            run,
            reporter=ours.ProgressReporter(),
        )
        bundle = load(run)
        return likelihood(
            bundle.model, bundle.task, build.corpus(bundle.recipe, bundle.tokenizer).valid
        ).perplexity


def main() -> None:
    parser = measure.options(__doc__)
    parser.add_argument("--steps", type=int, default=800)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    figures = {
        corpus.__name__: {
            name: perplexity(name, corpus(args.data), args.steps, args.seed)
            for name in RECIPES.values()
        }
        for corpus in (cornell, multi30k)
    }
    for corpus, scores in figures.items():
        print(corpus, "  ".join(f"{name} {score:.2f}" for name, score in scores.items()))
    record = {"unit": "perplexity per token", "setting": {"steps": args.steps}, "figures": figures}
    print(measure.write("attention", record | {"facts": measure.facts(args)}))


if __name__ == "__main__":
    main()
