"""What a report finds out by asking the model: scores, answers, errors and attention."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from regard.bundle import Bundle
from regard.data.corpus import Corpus, Split
from regard.data.sound import wav
from regard.errors import turns_in_line
from regard.evaluate import Evaluation, Question, Sample, answers, evaluate, likelihood, questions
from regard.pages.attend import ask
from regard.pages.shell import Section, Table, Turns, cut
from regard.pages.small_maps import Card, captioned, cards, heat_map, lit_pictures
from regard.tasks.sources import PictureSource, SoundSource

SAMPLES = 8
ERRORS = 8
MAPS = 3
SURPRISES = 1000  # examples among which the least likely answers are looked for
READ = 30  # tokens of a text whose map is easy to read
WORDS = 11  # of a caption, each with a picture
ROWS = 40  # tokens of an answer in a map
LABELS = 30  # of a table of confusions
MADE_SURE = 1e-3  # nats of effect that are drawn at full strength, at least

MEANINGS = {
    "perplexity": "exp of the mean loss: as uncertain as a choice among so many equally likely "
    "tokens; 1: certain",
    "word_perplexity": "the same for each word, comparable between tokenizers",
    "hits_at_1": "share of examples whose right answer is ranked first among 20",
    "mrr": "mean of 1 / rank of the right answer among 20",
    "pmi_hits_at_1": "hits_at_1, if answers that fit any input count less",
    "pmi_mrr": "mrr, if answers that fit any input count less",
    "bleu": "words and phrases shared with the right answers, 0 to 100",
    "bleu_1": "words shared with the right answers, 0 to 100",
    "bleu_2": "the same for words and pairs of words",
    "bleu_3": "the same up to three words",
    "bleu_4": "the same up to four words",
    "chrf": "character n-grams up to n = 6 shared with the right answers, 0 to 100",
    "exact": "share of answers that equal a right answer",
    "mean_length": "words of an answer",
    "distinct_1": "different words / all words of its answers",
    "distinct_2": "different pairs of words / all pairs",
    "unique_share": "different answers / answers",
    "bland_share": "share of answers that only say “I don’t know”",
    "repetition": "share of answers that repeat themselves",
    "prompt_copy_share": "share of answers that are copied from the prompt",
    "training_copy_share": "share of answers that are answers of the training data",
    "accuracy": "share of right labels",
    "accuracy_at_5": "share of examples whose right label is among its first five",
    "precision": "of the answers that name a label, the share that is right; mean over labels",
    "recall": "of the examples of a label, the share that is found; mean over labels",
    "f1": "harmonic mean of precision and recall; mean over labels",
    "cer": "wrong, missing and extra characters / characters of the right text",
    "wer": "wrong, missing and extra words / words of the right text",
    "jaccard": "characters in common, whatever their order",
    "cosine": "characters in common, whatever their order",
    "damerau_levenshtein": "1 - edits / length: similarity of the texts, in order",
}


@dataclass(frozen=True)
class Map:
    """The attention of one answer."""

    title: str
    picture: str  # SVG or HTML
    is_effect: bool


@dataclass(frozen=True)
class Findings:
    """What was found by asking the model.

    part        "validation", or "training" if nothing is held out
    evaluation  of the validation split; None without one
    test        of the test split; None unless it was asked for
    is_greedy   whether the scored answers are those of a greedy search
    samples     a few answers by the recipe's own search, with cards of pictures or sounds
    errors      the sections about what went wrong
    """

    part: str
    evaluation: Evaluation | None
    test: Evaluation | None
    is_greedy: bool
    samples: Section
    first_prompt: str | None
    errors: tuple[Section, ...]
    maps: tuple[Map, ...]


def find(
    bundle: Bundle, corpus: Corpus, *, test: bool = False, limit: int | None = None
) -> Findings:
    """Ask the model. At most `limit` inputs of a split are answered; by default as many as a
    validation answers."""
    task = bundle.task
    is_held_out = len(corpus.valid) > 0
    part = corpus.valid if is_held_out else corpus.train
    limit = limit or task.judged
    evaluation = _evaluate(bundle, corpus, part, limit) if is_held_out else None
    on_test = None
    if test and len(corpus.test):
        on_test = _evaluate(bundle, corpus, corpus.test, limit)
    few = questions(part, task, at_most=SAMPLES)
    errors: list[Section] = []
    if evaluation is not None:
        errors = list(_errors(bundle, part, evaluation, questions(part, task, at_most=limit)))
    return Findings(
        part="validation" if is_held_out else "training",
        evaluation=evaluation,
        test=on_test,
        is_greedy=task.judged_greedily,
        samples=_samples(bundle, few),
        first_prompt=few[0].shown if few else None,
        errors=tuple(errors),
        maps=tuple(_maps(bundle, part)),
    )


def _evaluate(bundle: Bundle, corpus: Corpus, part: Split, limit: int) -> Evaluation:
    options = bundle.search_options(greedy=True) if bundle.task.judged_greedily else None
    return evaluate(
        bundle,
        part,
        options=options,
        at_most=limit,
        ranked_examples=limit,
        training=corpus.train,
        samples=limit,
    )


# -- scores --


def score_table(result: Evaluation, caption: str) -> Table:
    """Every score with its interval, what it means, and what it is without the input."""
    others: dict[str, dict[str, float]] = {}
    if result.references:
        others["right answers"] = result.references
    others |= {f"baseline: {name}": scores for name, scores in result.baselines.items()}
    rows = []
    for name, value in result.scores.items():
        interval = interval_text(result.intervals.get(name))
        beside = [number_text(scores.get(name)) for scores in others.values()]
        better = result.better.get(name)
        rows.append((name, number_text(value), interval, better, *beside, MEANINGS.get(name)))
    columns = ("score", "value", "95 % interval", "better", *others, "meaning")
    return Table(columns, tuple(rows), caption, wraps=True)


def interval_text(bounds: tuple[float, float] | None) -> str | None:
    return None if bounds is None else f"{bounds[0]:.4g} to {bounds[1]:.4g}"


def number_text(value: float | None) -> str | None:
    """A score with four digits: perplexities of 1.001 and 1.004 are not the same."""
    return f"{value:.4g}" if value is not None and math.isfinite(value) else None


def confusion(tables: dict[str, Any]) -> Section | None:
    """Which labels were taken for which; None for a task without labels, or too many of them."""
    labels = tables.get("labels") or []
    counts = tables.get("confusion") or []
    if not counts or not 1 < len(labels) <= LABELS:
        return None
    numbers = np.array(counts, np.float64)
    shares = numbers / np.maximum(1, numbers.sum(1, keepdims=True))
    names = [str(label) for label in labels]
    drawing = heat_map(
        shares,
        names,
        names,
        title="Confusion matrix",
        counts=[[int(count) for count in row] for row in counts],
        row_label="right",
        column_label="answered",
    )
    text = (
        "A row for each right label, a column for each answered label, with the number of "
        "examples. Mistakes are beside the diagonal."
    )
    return Section("Confusions", id="confusions", paragraphs=(text,), figures=(drawing,))


# -- samples and errors --


def _samples(bundle: Bundle, few: Sequence[Question]) -> Section:
    texts = answers(bundle, [question.given for question in few])
    items = list(zip(few, texts, strict=True))
    if isinstance(bundle.task.source, PictureSource | SoundSource):
        figure = cards([_card(bundle, question, text) for question, text in items])
        return Section("Sample answers", id="samples", figures=(figure,))
    rows = tuple((Turns(cut(q.shown)), cut(text), _right(q.references)) for q, text in items)
    table = Table(("input", "answer", "right answer"), rows, wraps=True)
    return Section("Sample answers", id="samples", tables=(table,))


def _card(
    bundle: Bundle,
    question: Question,
    answer: str,
    more: Sequence[tuple[str, str]] = (),
) -> Card:
    source = bundle.task.source
    is_right = answer in question.references
    lines = [("answer", cut(answer) or "(nothing)"), *more]
    if not is_right:
        lines.append(("right", _right(question.references)))
    row = np.asarray(question.given)
    return Card(
        lines=tuple(lines),
        picture=row if isinstance(source, PictureSource) else None,
        sound=wav(row, source.rate) if isinstance(source, SoundSource) else b"",
        is_wrong=not is_right and not bundle.task.answers_are_text,
    )


def _right(references: Sequence[str]) -> str:
    return cut("  |  ".join(dict.fromkeys(references)))


def _line(text: str) -> str:
    """A text in one line; the turns of a history are lines."""
    return cut(turns_in_line(text))


def _errors(
    bundle: Bundle, part: Split, result: Evaluation, items: Sequence[Question]
) -> Iterator[Section]:
    pairs = list(zip(items, result.samples, strict=True))
    if not bundle.task.answers_are_text:
        yield _wrong_labels(bundle, pairs)
        matrix = confusion(result.tables)
        if matrix is not None:
            yield matrix
    elif bundle.recipe.task == "chat":
        yield _surprises(bundle, part)
    else:
        yield _farthest(bundle, pairs)


def _wrong_labels(bundle: Bundle, pairs: Sequence[tuple[Question, Sample]]) -> Section:
    """The most confident mistakes of a classifier."""
    wrong = [question for question, sample in pairs if sample.answer not in sample.references]
    title = "Errors worth looking at"
    if not wrong:
        text = f"All {len(pairs):,} answers are right."
        return Section(title, id="errors", paragraphs=(text,))
    labels = [row[0] for row in bundle.candidates([question.given for question in wrong])]
    order = sorted(range(len(wrong)), key=lambda i: -labels[i].score)[:ERRORS]
    text = (
        f"{len(wrong):,} of {len(pairs):,} answers are wrong. These are the ones it was most "
        "confident in; some may be errors in the data."
    )
    certain = [f"{math.exp(labels[i].score):.0%}" for i in order]
    if isinstance(bundle.task.source, PictureSource | SoundSource):
        figure = cards(
            [
                _card(bundle, wrong[i], labels[i].text, [("certain", share)])
                for i, share in zip(order, certain, strict=True)
            ]
        )
        return Section(title, id="errors", paragraphs=(text,), figures=(figure,))
    rows = tuple(
        (_line(wrong[i].shown), labels[i].text, share, _right(wrong[i].references))
        for i, share in zip(order, certain, strict=True)
    )
    table = Table(("input", "answer", "certain", "right answer"), rows, wraps=True)
    return Section(title, id="errors", paragraphs=(text,), tables=(table,))


def _surprises(bundle: Bundle, part: Split) -> Section:
    """The right answers that the model finds least likely."""
    held_out = likelihood(bundle.model, bundle.task, part, at_most=SURPRISES)
    nats = held_out.answer_nats / np.maximum(1, held_out.answer_tokens)
    order = np.argsort(-nats, kind="stable")[:ERRORS].tolist()
    examples = [part.texts(i) for i in order]
    inputs = [
        part.source[i] if bundle.task.source.reads_history else part.source_name(i) for i in order
    ]
    texts = answers(bundle, inputs)
    rows = tuple(
        (Turns(cut(str(example.source))), cut(text), cut(example.target), float(nats[i]))
        for example, text, i in zip(examples, texts, order, strict=True)
    )
    text = (
        "The right answers that it finds least likely, in nats per token (0: certain). They may "
        "be noise in the data, or something that it has not learned."
    )
    table = Table(("input", "answer", "right answer", "nats per token"), rows, wraps=True)
    return Section("Errors worth looking at", id="errors", paragraphs=(text,), tables=(table,))


def _farthest(bundle: Bundle, pairs: Sequence[tuple[Question, Sample]]) -> Section:
    """The answers that differ most from the right ones."""
    from rapidfuzz.distance import Levenshtein

    def distance(sample: Sample) -> float:
        return min(
            Levenshtein.normalized_distance(sample.answer, reference)
            for reference in sample.references
        )

    far = [(distance(sample), question, sample) for question, sample in pairs]
    wrong = sorted((item for item in far if item[0] > 0), key=lambda item: -item[0])[:ERRORS]
    title = "Errors worth looking at"
    if not wrong:
        text = f"All {len(pairs):,} answers equal a right answer."
        return Section(title, id="errors", paragraphs=(text,))
    count = sum(item[0] > 0 for item in far)
    text = (
        f"{count:,} of {len(pairs):,} answers differ from the right ones. These differ most, by "
        "edits / length (0: the same; 1: nothing in common)."
    )
    if isinstance(bundle.task.source, PictureSource | SoundSource):
        figure = cards(
            [
                _card(bundle, question, sample.answer, [("edits", f"{edits:.2f}")])
                for edits, question, sample in wrong
            ]
        )
        return Section(title, id="errors", paragraphs=(text,), figures=(figure,))
    rows = tuple(
        (Turns(cut(question.shown)), cut(sample.answer), _right(sample.references), edits)
        for edits, question, sample in wrong
    )
    table = Table(("input", "answer", "right answer", "edits / length"), rows, wraps=True)
    return Section(title, id="errors", paragraphs=(text,), tables=(table,))


# -- attention --


def _maps(bundle: Bundle, part: Split) -> Iterator[Map]:
    """The attention of a few answers that are short enough to be read."""
    task = bundle.task
    items = questions(part, task, at_most=10 * MAPS)
    lengths = [len(task.read_one(question.given)) for question in items]
    if not isinstance(task.source, PictureSource | SoundSource):
        readable = [i for i, length in enumerate(lengths) if 3 <= length <= READ]
        order = readable or sorted(range(len(items)), key=lambda i: lengths[i])
    else:
        order = list(range(len(items)))
    for i in order[:MAPS]:
        yield _map(bundle, items[i])


def _map(bundle: Bundle, question: Question) -> Map:
    subject = ask(bundle, question.given, bundle.options, name=question.shown, alternatives=0)
    answer, row = subject.answer, subject.row
    assert row is not None
    is_effect = answer.weights is None
    if answer.weights is not None:
        values = answer.weights.float().numpy().mean(1)  # (T, S)
    else:
        assert subject.effect is not None
        falls = np.maximum(0, subject.effect)
        values = falls / max(MADE_SURE, float(falls.max()))
    source = bundle.task.source
    title = f"{_line(question.shown)} → {cut(answer.text, 100) or '(nothing)'}"
    names = list(answer.step_names)
    if isinstance(source, PictureSource) and answer.grid is not None:
        items = list(zip(names, values, strict=True))[:WORDS]
        if len(names) > WORDS:
            title += f" (its first {WORDS} of {len(names)} tokens)"
        return Map(title, lit_pictures(row, answer.grid, items), is_effect)
    times = None
    if isinstance(source, SoundSource):
        times = source.place_times(row, values.shape[1])
    if len(names) > ROWS:
        title += f" (its first {ROWS} of {len(names)} tokens)"
    drawing = heat_map(
        values[:ROWS], names[:ROWS], list(answer.place_names), title=title, times=times
    )
    return Map(title, drawing, is_effect)


ATTENTION = (
    "Each row is a token of the answer, each column a place of the input. The more weight the "
    "token gave to the place, the stronger the colour (last layer, mean over the heads)."
)
LIT = (
    "For each word of the answer, the picture is clear where the word attended, and grey elsewhere "
    "(last layer, mean over the heads)."
)
EFFECT = (
    "The decoder of this model has no attention to the input. The map shows what its answer "
    "depends on: how much the log-probability of a token falls when a place of the input is hidden."
)


def attention(maps: Sequence[Map], is_picture: bool, command: str) -> Section | None:
    """The section of the maps; `command` makes the whole page of one."""
    if not maps:
        return None
    text = LIT if is_picture else ATTENTION
    if maps[0].is_effect:
        text = EFFECT
    return Section(
        "Attention of a few answers",
        id="attention",
        paragraphs=(text,),
        figures=tuple(captioned(item.title, item.picture) for item in maps),
        code=f"{command}  # all layers and heads",
    )
