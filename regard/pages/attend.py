"""The page of `regard attend`: an answer, what each token attended to, and what it depends on."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from regard.effect import effects, input_effects
from regard.errors import InputError, printable
from regard.pages.arrays import Arrays
from regard.pages.media import source_record
from regard.pages.shell import Page, Section, cut, names
from regard.pages.tensors import HEADS
from regard.pages.views import Part, View, chosen_layers, page_data
from regard.tasks.conversation import read_turns
from regard.tasks.sources import TextSource
from regard.values import Answer, AttentionWeights, CapturedAttention

if TYPE_CHECKING:
    from regard.bundle import Bundle, Trace
    from regard.search import Options

START_NAME = "(start)"
EFFECT_CELLS = 20_000  # tokens x places up to which effects are measured by default
HIDDEN_ROWS = 16  # inputs with a hidden place that are encoded together
TITLE = 90  # characters of an input or answer in the title

CROSS = ("Answer → source", "Each token of the answer attends to the source")
ENCODER = ("Source → source", "Each place of the source attends to the source (encoder)")
DECODER = ("Answer → answer", "Each token read by the decoder attends to those before it")
MASKED = (
    "Effect of hiding",
    "Fall of the log-probability of a token if the decoder cannot attend there",
)
HIDDEN = (
    "Effect of hiding",
    "Fall of the log-probability of a token if the place is hidden in the input",
)


@dataclass(frozen=True)
class Subject:
    """One answer of a page: the model, the input and its name, and the answer.

    effect          the effects (T, S), if they were measured
    masked          whether a place was hidden from attention; otherwise it was hidden in the input
    effect_reason   why they were not measured, and what to type for them
    effect_command
    """

    answer: Answer
    name: str = "answer"
    bundle: Bundle | None = None
    row: np.ndarray | None = None
    trace: Trace | None = None
    effect: np.ndarray | None = None
    masked: bool = True
    effect_reason: str = ""
    effect_command: str = ""


def name_of(bundle: Bundle, value: Any) -> str:
    """A text as a page names it. Of a conversation the turns that the model read, the oldest ones
    left out if they are long."""
    if isinstance(value, str):
        return value
    source = bundle.task.source
    if not isinstance(source, TextSource) or not isinstance(value, list | tuple):
        return ""
    turns = [turn.text for turn in read_turns(value) if turn.text.strip()]
    count = 1
    if source.reads_history:
        count += source.turn_of_places(source.read_one(value))[-1]
    return joined_turns(turns[-count:])


def joined_turns(turns: Sequence[str], most: int = TITLE) -> str:
    """Turns in one line, the oldest ones left out if it has more than so many characters.

    >>> joined_turns(["Hi!", "Hello.", "And you?"]), joined_turns(["Hi!", "Hello.", "Well?"], 18)
    ('Hi! / Hello. / And you?', '… / Hello. / Well?')
    """
    for first in range(len(turns)):
        text = " / ".join(["…"] * (first > 0) + list(turns[first:]))
        if len(text) <= most:
            return text
    return turns[-1]


def ask(
    bundle: Bundle,
    value: Any,
    options: Options,
    *,
    name: str,
    alternatives: int = 5,
    effect: bool | None = None,
    effect_command: str = "",
) -> Subject:
    """Ask a model, and measure the effect of hiding each place.

    effect          True or False; by default where it is quick, or if that is all there is to show
    effect_command  what to type for effects, which the page says if it has none
    """
    row = bundle.task.read_one(value)
    trace = bundle.trace(row, options, alternatives=alternatives)
    subject = Subject(trace.answers[0], name, bundle, row, trace)
    return measured(subject, effect, effect_command)


def measured(subject: Subject, effect: bool | None, command: str = "") -> Subject:
    """The same with effects, or with the reason why there are none."""
    answer = subject.answer
    if answer.weights is None and effect is False:
        raise InputError(
            "this model has no attention: the effect of hiding each place is all there is to show",
            where="effect",
            hint="leave --no-effect (or effect=False) out",
        )
    steps = len(answer.logprobs)
    places = len(answer.place_names)
    is_quick = steps * places <= EFFECT_CELLS
    if effect or answer.weights is None or (effect is None and is_quick):
        return with_effect(subject)
    reason = "The effects of this answer were left out."
    if effect is None:
        reason = (
            f"Effects are measured by default up to {EFFECT_CELLS:,} tokens x places. This answer "
            f"has {steps:,} x {places:,} = {steps * places:,}."
        )
    return replace(subject, effect_reason=reason, effect_command=command)


def with_effect(subject: Subject, before_pass: Callable[[], None] = lambda: None) -> Subject:
    """The same with the effect of hiding each place. `before_pass` is called before each pass of
    the model; what it raises ends the measurement."""
    answer, bundle, row = subject.answer, subject.bundle, subject.row
    assert bundle is not None and row is not None
    model = bundle.model
    raw, mask = (tensor.to(model.device) for tensor in bundle.task.sources([row]))
    tokens, targets = _teacher_forced(bundle, answer)
    if answer.weights is not None:
        falls = effects(model.decoder, model.encode(raw, mask), tokens, targets, before_pass)
        falls = falls[:, : answer.weights.shape[-1]]
        return replace(subject, effect=falls.float().cpu().numpy(), masked=True)

    places = len(answer.place_names)
    row_without = {}  # by the place that is hidden in it
    for place in range(places):
        hidden = bundle.task.source.hide(row, place, places, answer.grid)
        if hidden is not None:
            row_without[place] = hidden
    result = np.zeros((len(targets), places), np.float32)
    if row_without:
        batches = _hidden_batches(bundle, list(row_without.values()), before_pass)
        falls = input_effects(model, raw, mask, batches, tokens, targets)
        result[:, list(row_without)] = falls.float().cpu().numpy()
    return replace(subject, effect=np.nan_to_num(result), masked=False)


def _hidden_batches(
    bundle: Bundle, rows: Sequence[np.ndarray], before_pass: Callable[[], None]
) -> Iterator[tuple[Tensor, Tensor]]:
    for first in range(0, len(rows), HIDDEN_ROWS):
        before_pass()
        raw, mask = bundle.task.sources(rows[first : first + HIDDEN_ROWS])
        yield raw.to(bundle.model.device), mask.to(bundle.model.device)


def _teacher_forced(bundle: Bundle, answer: Answer) -> tuple[Tensor, Tensor]:
    """The tokens that the decoder read at each step of an answer, and those it wrote."""
    special = bundle.task.special_tokens
    targets = [*answer.tokens, special.end][: len(answer.logprobs)]
    tokens = [special.start, *answer.tokens][: len(targets)]
    device = bundle.model.device
    return torch.tensor(tokens, device=device), torch.tensor(targets, device=device)


def attention_page(
    subjects: Sequence[Subject],
    *,
    title: str | None = None,
    lead: str = "",
    facts: Sequence[tuple[str, str]] = (),
    layers: Sequence[int] | None = None,
    command: str = "",
) -> Page:
    """The page of one answer, or of two side by side."""
    store = Arrays()
    views = [_view(subject, store, layers) for subject in subjects]
    first = views[0]
    data = page_data(views, store, start=_start(first))
    sections = [Section("", id="attention", widget="attention", paragraphs=data.notes)]
    if any(part.id != "effect" for part in first.parts):
        sections.append(HEADS)
    if any(step.get("alternatives") for step in first.steps):
        sections.append(Section("Alternatives at each step", id="alternatives", widget="steps"))
    if any(view.beam for view in views):
        sections.append(Section("Beam search", id="beam", widget="beam", paragraphs=(BEAM,)))
    sections.append(_about(views, subjects, command))
    return Page(
        title=title or _title(subjects),
        kind="attend",
        lead=lead,
        facts=(*facts, *_facts(subjects, data.json["views"])),
        sections=tuple(sections),
        data=data.json,
        arrays=data.arrays,
    )


def subject_view(
    subject: Subject, layers: Sequence[int] | None = None
) -> tuple[View, dict[str, str]]:
    """One answer as a view, and the arrays of its media, for a figure."""
    store = Arrays()
    return _view(subject, store, layers), store.texts


def _title(subjects: Sequence[Subject]) -> str:
    if len(subjects) > 1:
        return f"{cut(subjects[0].name, TITLE)}  |  {cut(subjects[1].name, TITLE)}"
    (subject,) = subjects
    answer = cut(subject.answer.text, TITLE) or "(nothing)"
    return f"{cut(subject.name, TITLE)} → {answer}" if subject.name else answer


# -- an answer as a view --


def _view(subject: Subject, store: Arrays, layers: Sequence[int] | None) -> View:
    answer = subject.answer
    steps = names(answer.step_names)
    read = [START_NAME, *names(answer.pieces)][: len(steps)]
    places = names(answer.place_names)
    source: dict[str, Any] = {"kind": "text"}
    if subject.bundle is not None and subject.row is not None:
        source = source_record(subject.bundle, subject.row, len(places), store)
    return View(
        name=names([subject.name])[0],
        names={"steps": steps, "read": read, "places": places},
        parts=tuple(_parts(subject, layers)),
        steps=tuple(_steps(answer, steps)),
        source=source,
        turns=tuple(_turns(subject, len(places))),
        answer={"text": answer.text, "score": _number(answer.score), "finish": answer.finish},
        beam=_beam(subject),
        effect_reason=subject.effect_reason,
        effect_command=subject.effect_command,
    )


def _turns(subject: Subject, places: int) -> Iterator[dict[str, Any]]:
    """The turns of a conversation that was read, numbered from 1, and the end token."""
    bundle, row = subject.bundle, subject.row
    if bundle is None or row is None or not bundle.task.source.reads_history:
        return
    source = bundle.task.source
    assert isinstance(source, TextSource)
    for number, turn in enumerate(source.turns_of(row, places), 1):
        name = f"{number} {turn.name}" if turn.text else turn.name
        yield {"name": name, "text": printable(turn.text), "places": turn.places}


def _steps(answer: Answer, steps: Sequence[str]) -> Iterator[dict[str, Any]]:
    for i, name in enumerate(steps):
        step: dict[str, Any] = {"name": name, "logprob": _number(answer.logprobs[i])}
        if answer.alternatives is not None:
            chosen = answer.tokens[i] if i < len(answer.tokens) else None
            step["alternatives"] = [
                [names([other.text])[0], round(other.probability, 6), _is_chosen(other, chosen)]
                for other in answer.alternatives[i]
            ]
        yield step


def _is_chosen(alternative: Any, token: int | None) -> bool:
    from regard.values import END_NAME

    return alternative.text == END_NAME if token is None else alternative.token == token


def _parts(subject: Subject, layers: Sequence[int] | None) -> Iterator[Part]:
    answer = subject.answer
    captured = answer.attention
    _check_layers(captured, layers)
    if isinstance(captured, CapturedAttention):
        yield from _part("cross", CROSS, "steps", "places", captured.cross, layers)
        yield from _part("encoder", ENCODER, "places", "places", captured.encoder, layers)
        yield from _part("decoder", DECODER, "read", "read", captured.decoder, layers)
    elif answer.weights is not None:
        weights = answer.weights.float().numpy().transpose(1, 0, 2)  # (H, T, S)
        title, about = CROSS
        yield Part("cross", title, f"{about}, last layer", "steps", "places", ((0, weights),))
    if subject.effect is not None:
        title, about = MASKED if subject.masked else HIDDEN
        most = max(1e-6, float(np.abs(subject.effect).max()))
        maps = ((0, subject.effect[None]),)
        yield Part("effect", title, about, "steps", "places", maps, "effect", -most, most)


def _check_layers(captured: object, layers: Sequence[int] | None) -> None:
    """Refuse a layer that the model does not have, also where there is one layer only."""
    numbers = {0}
    if isinstance(captured, CapturedAttention):
        parts = (captured.cross, captured.encoder, captured.decoder)
        numbers |= {layer.layer for part in parts for layer in part}
    chosen_layers(sorted(numbers), layers)


def _part(
    name: str,
    texts: tuple[str, str],
    rows: str,
    columns: str,
    captured: Sequence[AttentionWeights],
    layers: Sequence[int] | None,
) -> Iterator[Part]:
    if not captured:
        return
    numbers = [layer.layer for layer in captured]
    if layers is not None and len(numbers) > 1:  # a part of one layer is always shown
        numbers = chosen_layers(numbers, layers)
    maps = tuple(
        (layer.layer, layer.weights[0].float().numpy())
        for layer in captured
        if layer.layer in numbers
    )
    yield Part(name, *texts, rows, columns, maps, form=captured[0].form)


def _start(view: View) -> dict[str, Any]:
    """What is selected first: the first token, and the place with its largest weight."""
    if not view.parts:
        return {}
    part = view.parts[0]
    row = part.layers[-1][1].mean(0)[0]
    return {"part": part.id, "token": 0, "place": int(np.abs(row).argmax()), "head": "mean"}


def _beam(subject: Subject) -> dict[str, Any] | None:
    """The hypotheses of a beam search as the nodes of a tree."""
    if subject.trace is None or not subject.trace.beam or subject.bundle is None:
        return None
    nodes = subject.trace.beam
    tokenizer = subject.bundle.task.answer_tokenizer
    answer = subject.answer
    best = _best_nodes(subject)
    paths: list[list[int]] = []
    records = []
    for number, node in enumerate(nodes):
        path = [*([] if node.parent is None else paths[node.parent]), node.token]
        paths.append(path)
        if node.ended:
            name = "(end)"
        else:
            name = list(tokenizer.pieces(path))[-1]
        record = node._asdict() | {"name": names([name])[0], "best": number in best}
        record["score"] = _number(node.score)
        record["logprob"] = _number(node.logprob)
        del record["token"]
        records.append(record)
    return {"nodes": records, "answer": answer.text}


def _best_nodes(subject: Subject) -> set[int]:
    """The numbers of the nodes on the way to the answer."""
    assert subject.trace is not None and subject.bundle is not None
    answer = subject.answer
    target = list(answer.tokens)
    if answer.finish == "stop":
        target.append(subject.bundle.task.special_tokens.end)
    nodes = subject.trace.beam
    reached: dict[int, int] = {}  # how many tokens of the answer end at this node
    for number, node in enumerate(nodes):
        before = 0 if node.parent is None else reached.get(node.parent, -1)
        if before == node.step < len(target) and node.token == target[node.step]:
            reached[number] = node.step + 1
    return set(reached)


# -- what a page says --

BEAM = (
    "Each column is a step, each row one of the hypotheses that were kept, the best on top. The "
    "number below a token is the log-probability of its hypothesis. The path of the "
    "answer is thick; branches that end were dropped."
)
WEIGHTS = (
    "The weights were captured in the pass that wrote the answer; they are not computed again. "
    "Layers, heads and tokens count from 0, as in Python."
)
QUADRATIC = (
    "This model uses linear attention, which computes its output from sums and has no weights. The "
    "map shows its quadratic form: the weights that would give the same output."
)
EFFECT = (
    "A weight says where the model attended. The effect says what its answer depends on: how much "
    "the log-probability of a token, in nats, falls when a place is hidden. The two can differ "
    "(Jain & Wallace 2019; Wiegreffe & Pinter 2019): attention alone is not an explanation."
)
EFFECT_MASKED = (
    "Here a hidden place is masked, so that no attention layer of the decoder reads it; the "
    "encoder has read it."
)
EFFECT_HIDDEN = (
    "The decoder of this model has no attention to the source, so there are no weights beside the "
    "effect. Here a hidden place is replaced in the input: a token by the unknown token, pixels by "
    "the mean colour, a sound by silence."
)
KEYS = (
    "Keys: Tab moves between controls; in the map, arrows move the selected cell, Home and End go "
    "to the ends of the row, + and - zoom; [ and ] change the head, { and } the layer. The address "
    "of the page stores the view."
)
EFFECT_KEY = "The key E shows or hides the effects beside the weights."


def _about(views: Sequence[View], subjects: Sequence[Subject], command: str) -> Section:
    paragraphs = []
    parts = [part for view in views for part in view.parts]
    if any(part.id != "effect" for part in parts):
        paragraphs.append(WEIGHTS)
    if any(part.form == "quadratic" for part in parts):
        paragraphs.append(QUADRATIC)
    if any(part.id == "effect" for part in parts):
        paragraphs.append(EFFECT)
        masked = any(subject.effect is not None and subject.masked for subject in subjects)
        paragraphs.append(EFFECT_MASKED if masked else EFFECT_HIDDEN)
    has_both = any(view.part("cross") and view.part("effect") for view in views)
    paragraphs.append(f"{KEYS} {EFFECT_KEY}" if has_both else KEYS)
    return Section("About this page", id="about", paragraphs=tuple(paragraphs), code=command)


def _facts(
    subjects: Sequence[Subject], records: Sequence[dict[str, Any]]
) -> Iterator[tuple[str, str]]:
    """The facts of each answer; of two, with a bar between them."""
    yield "log p", " | ".join(f"{subject.answer.score:.3f}" for subject in subjects)
    if any(subject.answer.finish == "length" for subject in subjects):
        yield "ended by", " | ".join(_end(subject.answer) for subject in subjects)
    correlations = []
    for record in records:
        layers = [part["layers"][-1] for part in record["parts"] if part["id"] == "cross"]
        correlations += [
            layer["correlation"] for layer in layers if layer.get("correlation") is not None
        ]
    if correlations:
        numbers = " | ".join(f"{correlation:.2f}" for correlation in correlations)
        yield "rank correlation of weight and effect", numbers


def _end(answer: Answer) -> str:
    return "its end token" if answer.finish == "stop" else "max_new_tokens"


def _number(value: float) -> float | None:
    return round(value, 6) if math.isfinite(value) else None
