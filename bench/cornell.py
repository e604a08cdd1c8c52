"""Chat on Cornell: the classic chatbot against ours, both trained for the same minutes on the same
pairs.

    python -m bench.cornell

Held out are the last 2,000 lines of cornell_pairs/pairs.tsv; everything before them may be trained
on. The classic trains on the pairs it can represent, as it always does; ours on whatever it makes
of all of them.

Perplexity per word is over the same words for both. A held-out pair counts if the classic can
represent it: both sides of 1 to 9 words after its normalisation, all of them in its trimmed
vocabulary. The number of words is the classic's: the words and . ! ? of its normalised reply, and
one end mark each. Its nats are those of the normalised reply; ours are those of the raw text of the
same reply, end mark included. Both are divided by the same number. This favours the classic: it
need not predict capitals, commas, apostrophes or digits, nor spread its chances over words it
dropped.

Replies are to the first 500 held-out prompts: the classic's greedy ones, ours greedy, and ours as
the recipe searches, with the cure for bland replies. All are brought to the classic's normalisation
before they are scored, or "don t" would be two words for one and "don't" one for the other. The
replies people gave stand beside them.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from bench import measure, ours
from bench.peers import classic_chatbot
from regard import metrics

HELD_OUT = 2_000
ASKED = 500  # held-out prompts that are answered
SAMPLES = 20  # of them shown, evenly spread
Pair = tuple[str, str]


def split(folder: Path) -> tuple[list[Pair], list[Pair]]:
    """Training pairs and held-out pairs, raw, as they stand in the file (some sides are empty)."""
    lines = (folder / "cornell_pairs" / "pairs.tsv").read_text(encoding="utf-8").split("\n")
    pairs = [
        (prompt, reply) for prompt, _, reply in (line.partition("\t") for line in lines if line)
    ]
    return pairs[:-HELD_OUT], pairs[-HELD_OUT:]


def quality(replies: Sequence[str], references: Sequence[str]) -> dict[str, float]:
    """The scores of a set of replies, brought to one normalisation."""
    replies, references = (
        [" ".join(classic_chatbot.normalise(t)) for t in texts] for texts in (replies, references)
    )
    return {
        "distinct_1": metrics.distinct(replies, 1),
        "distinct_2": metrics.distinct(replies, 2),
        "unique_share": metrics.unique_share(replies),
        "bland_share": metrics.bland_share(replies),
        "repetition": metrics.repetition(replies),
        "mean_length": metrics.mean_length(replies),
        "chrf": metrics.chrf(replies, [[reference] for reference in references]),
    }


def main() -> None:
    parser = measure.options(__doc__)
    parser.add_argument("--minutes", type=float, default=8, help="training time of each side")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)

    # Which pairs count, and how many words they have, is the classic's to say, even if it is not
    # trained again.
    training, held_out = split(given.data)
    before = measure.read("cornell") if given.only == "ours" else None
    classic = classic_chatbot.train(
        training, given.minutes, given.seed, most_steps=1 if before else None
    )
    counted = [pair for pair in held_out if classic.knows(pair)]
    asked = [pair for pair in held_out if all(side.strip() for side in pair)][:ASKED]
    prompts, answers = [prompt for prompt, _ in asked], [reply for _, reply in asked]
    nats, count = classic.nats(counted)
    setting = {
        "minutes": given.minutes,
        "training_pairs": len(training),
        "classic_training_pairs": sum(classic.knows(pair) for pair in training),
        "classic_words": len(classic.words),
        "classic_steps": classic.steps,
        "held_out_pairs": len(counted),
        "held_out_words": count,
        "prompts": len(prompts),
    }
    said = {"people": answers}
    if not before:
        said["peer"] = [classic.reply(prompt) for prompt in prompts]
    figures = {name: quality(replies, answers) for name, replies in said.items()}
    if before:
        figures["peer"], setting["classic_steps"] = (
            before["figures"]["peer"],
            before["setting"]["classic_steps"],
        )
    else:
        figures["peer"] = {"perplexity_per_word": metrics.perplexity(nats, count)} | figures["peer"]
    if given.only != "peer":
        chatbot = ours.chat(training, given.minutes, given.seed)
        said["ours, greedy"] = chatbot.replies(prompts, greedy=True)
        said["ours"] = chatbot.replies(prompts, greedy=False)
        figures["ours, greedy"] = {
            "perplexity_per_word": metrics.perplexity(chatbot.nats(counted), count)
        }
        for name in ("ours, greedy", "ours"):
            figures[name] = figures.get(name, {}) | quality(said[name], answers)
    for name, scores in ({"setting": setting} | figures).items():
        print(name, "  ".join(f"{key} {value:,.4g}" for key, value in scores.items()))

    samples = [
        {"prompt": prompt} | {name: replies[n] for name, replies in said.items()}
        for n, prompt in list(enumerate(prompts))[:: len(prompts) // SAMPLES][:SAMPLES]
    ]
    for sample, old in zip(samples, before["samples"] if before else samples, strict=True):
        sample["peer"] = old["peer"]
        print(
            sample["prompt"],
            *(f"    {name}: {text}" for name, text in sample.items() if name != "prompt"),
            sep="\n",
        )
    if given.only != "peer":
        facts = measure.facts(given)
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
