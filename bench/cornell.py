"""Chat on Cornell: the classic chatbot against ours, same pairs and training time.

    python -m bench.cornell                            ours is chat-attention
    python -m bench.cornell --recipe chat-dialogue

The last 2,000 lines of cornell_pairs/pairs.tsv are held out; all lines before them may be used for
training. The classic trains on the pairs it can represent, ours on all pairs.

Perplexity per word is over the same words for both. A held-out pair counts if the classic can
represent it: both sides have 1 to 9 words after its normalisation, all in its trimmed vocabulary.
The number of words is that of the normalised reply (words, . ! ? and one end token). The classic's
nats are those of the normalised reply; ours are those of the raw text of the same reply, end token
included. Both are divided by the same number. This favours the classic: it need not predict
capitals, commas, apostrophes or digits, nor words it has dropped.

Replies are to the first 500 held-out prompts: the classic's with greedy search, ours with greedy
search, and ours with the recipe's search, which uses MMI re-ranking. All replies are normalised
like the classic's before they are scored; otherwise "don t" would be two words and "don't" one. The
replies of people are scored too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from bench import measure, ours
from bench.peers import classic_chatbot
from regard import metrics

HELD_OUT = 2_000
PROMPTS = 500  # held-out prompts that are answered
SAMPLES = 20  # of these, evenly spaced, are printed
Pair = tuple[str, str]


def split(folder: Path) -> tuple[list[Pair], list[Pair]]:
    """Training pairs and held-out pairs as in the file; some sides are empty."""
    lines = (folder / "cornell_pairs" / "pairs.tsv").read_text(encoding="utf-8").split("\n")
    pairs = []
    for line in filter(None, lines):
        prompt, _, reply = line.partition("\t")
        pairs.append((prompt, reply))
    return pairs[:-HELD_OUT], pairs[-HELD_OUT:]


def quality(replies: Sequence[str], references: Sequence[str]) -> dict[str, float]:
    """The scores of replies, after the classic's normalisation."""
    replies = [" ".join(classic_chatbot.normalise(reply)) for reply in replies]
    references = [" ".join(classic_chatbot.normalise(reference)) for reference in references]
    return {
        "distinct_1": metrics.distinct(replies, 1),
        "distinct_2": metrics.distinct(replies, 2),
        "unique_share": metrics.unique_share(replies),
        "bland_share": metrics.bland_share(replies),
        "repetition": metrics.repetition(replies),
        "mean_length": metrics.mean_length(replies),
        "chrf": metrics.chrf(replies, [[reference] for reference in references]),
    }


def _text(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:,.4g}"


def _samples(
    prompts: Sequence[str],
    replies: Mapping[str, Sequence[str]],
    before: Mapping[str, Any] | None,
) -> list[dict[str, str]]:
    """Print and return replies to evenly spaced prompts; the classic's may be those of before."""
    samples = []
    for place, i in enumerate(range(0, len(prompts), len(prompts) // SAMPLES)[:SAMPLES]):
        sample = {"prompt": prompts[i]} | {name: texts[i] for name, texts in replies.items()}
        if before is not None:
            sample["peer"] = before["samples"][place]["peer"]
        print(sample["prompt"])
        for name, text in sample.items():
            if name != "prompt":
                print(f"    {name}: {text}")
        samples.append(sample)
    return samples


def main() -> None:
    parser = measure.options(__doc__)
    parser.add_argument("--minutes", type=float, default=8, help="training time of each side")
    parser.add_argument("--recipe", default="chat-attention", help="ours")
    parser.add_argument("--set", action="append", default=[], help="change a field of the recipe")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)

    # The classic defines which pairs count and how many words they have, even if it is not trained
    # again.
    training, held_out = split(args.data)
    before = measure.read("cornell") if args.only == "ours" else None
    classic = classic_chatbot.train(
        training, args.minutes, args.seed, max_steps=1 if before else None
    )
    scored = [pair for pair in held_out if classic.knows(pair)]
    nats, count = classic.nats(scored)
    complete = [pair for pair in held_out if all(side.strip() for side in pair)][:PROMPTS]
    prompts = [prompt for prompt, _ in complete]
    references = [reply for _, reply in complete]
    setting = {
        "recipe": " ".join([args.recipe, *args.set]),
        "minutes": args.minutes,
        "training_pairs": len(training),
        "classic_training_pairs": sum(classic.knows(pair) for pair in training),
        "classic_words": len(classic.words),
        "classic_steps": classic.steps,
        "held_out_pairs": len(scored),
        "held_out_words": count,
        "prompts": len(prompts),
    }
    replies = {"people": references}
    if not before:
        replies["peer"] = [classic.reply(prompt) for prompt in prompts]
    figures = {name: quality(texts, references) for name, texts in replies.items()}
    if before:
        figures["peer"] = before["figures"]["peer"]
        setting["classic_steps"] = before["setting"]["classic_steps"]
    else:
        figures["peer"] = {"perplexity_per_word": metrics.perplexity(nats, count)} | figures["peer"]
    if args.only != "peer":
        chatbot = ours.chat(args.recipe, training, args.minutes, args.seed, args.set)
        replies["ours, greedy"] = chatbot.replies(prompts, greedy=True)
        replies["ours"] = chatbot.replies(prompts, greedy=False)
        figures["ours, greedy"] = {
            "perplexity_per_word": metrics.perplexity(chatbot.nats(scored), count)
        }
        for name in ("ours, greedy", "ours"):
            figures[name] = figures.get(name, {}) | quality(replies[name], references)
    for name, scores in ({"setting": setting} | figures).items():
        print(name, "  ".join(f"{key} {_text(value)}" for key, value in scores.items()))
    samples = _samples(prompts, replies, before)
    if args.only != "peer":
        facts = measure.facts(args)
        peer_facts = before.get("peer_facts", before["facts"]) if before else facts
        record = {
            "setting": setting,
            "figures": figures,
            "samples": samples,
            "facts": facts,
            "peer_facts": peer_facts,
        }
        print(measure.write("cornell", record))


if __name__ == "__main__":
    main()
