"""Pages: their data is that of the model, they fit, and no text in them becomes markup."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import regard
from regard.disk import MADE_BY
from regard.effect import input_effects
from regard.errors import InputError
from regard.pages import arrays
from regard.pages.arrays import Arrays, decode, encode, quantised
from regard.pages.attend import ask, attention_page, subject_view
from regard.pages.figure import attention_figure, write_figure
from regard.pages.heads import head_numbers, rank_correlation
from regard.pages.shell import Entry, Page, Section, Table, json_text
from regard.pages.tensors import show_weights
from regard.pages.views import Part, View
from regard.search import Options
from regard.values import Answer
from tests.unit.test_answers import CASES, LETTERS, WORDS, untrained

EVIL = ["</script>", "<script>alert(1)</script>", "<!--", "&amp;", "a\u2028b\x1b", "\"'"]
REQUESTS = re.compile(r"fetch\(|XMLHttpRequest|WebSocket|EventSource|import\(|sendBeacon|https?:")
MARKUP = re.compile(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function")


def softmax(shape: tuple[int, ...], seed: int = 7) -> np.ndarray:
    scores = np.random.default_rng(seed).normal(size=shape) * 3
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


def page_of(
    name: str, how: Options | None = None, *, effect: bool | None = None
) -> tuple[Page, Any]:
    recipe, tokenizer, given, _ = CASES[name]
    bundle = untrained(recipe, tokenizer)
    options = how or Options(max_new_tokens=5)
    subject = ask(bundle, given, options, name="input", effect=effect)
    return attention_page([subject]), subject


class Elements(HTMLParser):
    """The elements of a page as a browser finds them."""

    def __init__(self, text: str):
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, str] = {}
        self.open = ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        attributes = dict(attrs)
        self.tags.append((tag, attributes))
        self.open = attributes.get("id") or ""

    def handle_data(self, data):
        if self.open:
            self.texts[self.open] = self.texts.get(self.open, "") + data


def data_of(page: Page) -> tuple[dict[str, Any], dict[str, str]]:
    """The data and arrays of a page, read from its HTML."""
    elements = Elements(page.html)
    return json.loads(elements.texts["data"]), elements.texts


# -- arrays


@pytest.mark.parametrize("dtype", [np.uint8, np.float16])
def test_arrays_come_back(dtype):
    values = (softmax((5, 7)) * 200).astype(dtype)
    assert (decode(encode(values), dtype, (5, 7)) == values).all()


def test_the_error_of_a_drawn_weight_is_at_most_one_in_510():
    weights = np.concatenate([softmax((31, 37)).ravel(), np.linspace(0, 1, 1001)])
    levels = quantised(weights, 0, 1)
    assert np.abs(levels / 255 - weights).max() <= 1 / 510 + 1e-12


def test_a_page_leaves_out_what_does_not_fit(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(arrays, "CAP", 400_000)
    monkeypatch.setattr(Arrays.__init__, "__defaults__", (400_000,))
    noise = np.random.default_rng(3).uniform(size=(5, 1, 200, 200))
    page = show_weights(noise, [str(i) for i in range(200)])
    data, _ = data_of(page)
    layers = data["views"][0]["parts"][0]["layers"]
    kept = [layer["layer"] for layer in layers if layer["heads"][0]["array"]]
    assert kept and kept == list(range(5))[-len(kept) :] and len(kept) < 5  # the last ones
    assert len(page.html) < 400_000
    said = page.sections[0].text
    assert "Not in this page" in said and "--layers" in said
    chosen = show_weights(noise, [str(i) for i in range(200)], layers=[0])
    assert [layer["layer"] for layer in data_of(chosen)[0]["views"][0]["parts"][0]["layers"]] == [0]


@pytest.mark.parametrize("sharpness", [0.0, 3.0])
def test_a_map_of_500_tokens_8_layers_and_8_heads_is_below_25_mb(sharpness: float):
    weights = np.random.default_rng(1).uniform(size=(8, 8, 500, 500)).astype(np.float32)
    if sharpness:
        weights = np.exp(2 * sharpness * weights)
        weights /= weights.sum(-1, keepdims=True)
    page = show_weights(weights, [f"token {i}" for i in range(500)])
    assert len(page.html.encode()) <= arrays.CAP
    data = page.data["views"][0]["parts"][0]["layers"]
    assert all(head["array"] for layer in data for head in layer["heads"])


# -- the data is the model's


@pytest.mark.parametrize("name", [name for name in CASES if name != "bytes"])
def test_a_page_has_the_weights_of_the_pass_that_made_the_answer(name: str):
    page, subject = page_of(name)
    answer = subject.answer
    data, texts = data_of(page)
    (view,) = data["views"]
    captured = answer.attention
    parts = {part["id"]: part for part in view["parts"]}
    expected = {"cross": captured.cross, "encoder": captured.encoder, "decoder": captured.decoder}
    assert {key for key, layers in expected.items() if layers} == set(parts) - {"effect"}
    for key, layers in expected.items():
        for layer, record in zip(layers, parts[key]["layers"] if layers else (), strict=True):
            assert record["layer"] == layer.layer
            maps = layer.weights[0].numpy()
            assert len(record["heads"]) == len(maps)
            names = (view["names"][parts[key]["rows"]], view["names"][parts[key]["columns"]])
            assert maps.shape[1:] == tuple(map(len, names))
            for weights, head in zip(maps, record["heads"], strict=True):
                exact = decode(texts[head["exact"]], np.float16, weights.shape)
                drawn = decode(texts[head["array"]], np.uint8, weights.shape)
                assert (exact == weights.astype(np.float16)).all()
                assert np.abs(drawn / 255 - weights).max() <= 1 / 510 + 1e-6
    assert view["names"]["steps"] == [step.strip() or "·" for step in answer.step_names]
    if answer.weights is None:
        assert "effect" in parts  # what can be shown of a decoder without attention


def test_the_weights_are_those_of_a_second_way_to_compute_them():
    """The page of greedy search against one pass over all tokens."""
    page, subject = page_of("transformer")
    data, texts = data_of(page)
    bundle, answer = subject.bundle, subject.answer
    raw, mask = bundle.task.sources([subject.row])
    memory = bundle.model.encode(raw, mask, capture="all")
    tokens = [bundle.task.special_tokens.start, *answer.tokens][: len(answer.logprobs)]
    _, layers = bundle.model.decoder.forward_with_attention(
        torch.tensor([tokens]), memory, capture="all"
    )
    by_kind = {"decoder": "self", "cross": "cross"}
    for part in data["views"][0]["parts"]:
        if part["id"] == "effect":
            continue
        if part["id"] == "encoder":
            wanted = memory.attention
        else:
            wanted = [layer for layer in layers if layer.kind == by_kind[part["id"]]]
        for layer, record in zip(wanted, part["layers"], strict=True):
            for weights, head in zip(layer.weights[0], record["heads"], strict=True):
                exact = decode(texts[head["exact"]], np.float16, tuple(weights.shape))
                np.testing.assert_allclose(exact, weights.detach().numpy(), atol=1e-3)


def test_linear_attention_is_labelled():
    bundle = untrained("chat-maclaurin", WORDS)
    page = attention_page([ask(bundle, "one two", Options(max_new_tokens=3), name="one two")])
    forms = {part["form"] for part in page.data["views"][0]["parts"]}
    assert forms == {"quadratic", "effect"}
    assert "quadratic form" in page.sections[-1].text


def test_alternatives_and_the_end_mark_are_shown():
    page, subject = page_of("words", Options(max_new_tokens=30))
    steps = page.data["views"][0]["steps"]
    assert len(steps) == len(subject.answer.logprobs)
    for step in steps:
        chances = [p for _, p, _ in step["alternatives"]]
        assert len(chances) == 5 and chances == sorted(chances, reverse=True)
        taken = [p for _, p, is_taken in step["alternatives"] if is_taken]
        assert not taken or math.isclose(taken[0], math.exp(step["logprob"]), abs_tol=1e-4)


def test_the_tree_of_a_beam_search_leads_to_the_answer():
    page, subject = page_of("words", Options(max_new_tokens=7, num_beams=3))
    nodes = page.data["views"][0]["beam"]["nodes"]
    best = [node for node in nodes if node["best"]]
    assert [node["name"] for node in best] == page.data["views"][0]["names"]["steps"]
    assert best[-1]["score"] == pytest.approx(subject.answer.score, abs=1e-4)
    for node in nodes:
        parent = None if node["parent"] is None else nodes[node["parent"]]
        assert node["step"] == (0 if parent is None else parent["step"] + 1)
        assert parent is None or not parent["ended"]
        before = 0.0 if parent is None else parent["score"]
        assert node["score"] == pytest.approx(before + node["logprob"], abs=1e-4)
    for step in range(1 + max(node["step"] for node in nodes)):
        assert sum(node["step"] == step for node in nodes) <= 3
    assert page_of("words")[0].data["views"][0]["beam"] is None  # greedy search has no beam


# -- heads and effects


def test_numbers_of_heads_against_loops():
    weights = softmax((7, 7))
    numbers = head_numbers(weights, square=True)
    entropy = distance = 0.0
    for t in range(7):
        for s in range(7):
            entropy -= weights[t, s] * math.log(weights[t, s]) / 7
            distance += weights[t, s] * abs(t - s) / 7
    assert numbers["entropy"] == pytest.approx(entropy)
    assert numbers["distance"] == pytest.approx(distance)
    assert numbers["previous"] == pytest.approx(sum(weights[t, t - 1] for t in range(1, 7)) / 6)
    assert numbers["itself"] == pytest.approx(sum(weights[t, t] for t in range(7)) / 7)
    assert numbers["first"] == pytest.approx(weights[:, 0].mean())
    across = head_numbers(weights[:3], square=False)
    assert across["distance"] is across["previous"] is across["itself"] is None


def test_rank_correlation_is_scipys():
    from scipy.stats import spearmanr

    a, b = softmax((2, 13))
    a[3] = a[5]
    assert rank_correlation(a, b) == pytest.approx(spearmanr(a, b)[0])
    assert rank_correlation(np.ones(5), b[:5]) is None
    assert rank_correlation(a[:2], b[:2]) is None


@pytest.mark.parametrize("name", ["words", "caption", "speech", "no attention", "blank"])
def test_effects_are_measured_beside_the_weights(name: str):
    page, subject = page_of(name, effect=True)
    (part,) = (part for part in page.data["views"][0]["parts"] if part["id"] == "effect")
    assert part["low"] == -part["high"]
    steps, places = len(subject.answer.logprobs), len(subject.answer.place_names)
    assert subject.effect.shape == (steps, places) and np.isfinite(subject.effect).all()
    assert np.abs(subject.effect).max() > 0
    cross = [part for part in page.data["views"][0]["parts"] if part["id"] == "cross"]
    assert subject.masked == bool(cross)
    if cross:
        layer = cross[0]["layers"][-1]
        captured = subject.answer.attention.cross[-1].weights[0].numpy()
        for record, weights in ((layer, captured.mean(0)), (layer["heads"][0], captured[0])):
            by_token = [
                rank_correlation(*rows) or 0.0 for rows in zip(weights, subject.effect, strict=True)
            ]
            assert record["correlations"] == pytest.approx(by_token, abs=1e-4)
            assert record["correlation"] == pytest.approx(np.mean(by_token))
        assert layer["heads"][0]["numbers"]["correlation"] == layer["heads"][0]["correlation"]


def test_the_effect_of_hiding_a_word_by_hand():
    bundle = untrained("chat-lstm", WORDS)
    subject = ask(bundle, "one two three", Options(max_new_tokens=1), name="")
    row = bundle.task.read_one("one two three")
    hidden = bundle.task.source.hide(row, 1, 4)
    assert hidden is not None and (hidden != row).tolist() == [False, True, False]
    assert bundle.task.source.hide(row, 3, 4) is None  # the end token stays
    logs = []
    for source in (row, hidden):
        memory = bundle.model.encode(*bundle.task.sources([source]))
        logits = bundle.model.decoder(torch.tensor([[bundle.task.special_tokens.start]]), memory)
        logs.append(float(logits.log_softmax(-1)[0, 0, subject.answer.tokens[0]].detach()))
    assert subject.effect is not None
    assert subject.effect[0, 1] == pytest.approx(logs[0] - logs[1], abs=1e-5)
    assert subject.effect[0, 3] == 0


def test_pictures_and_sounds_are_hidden_where_they_should_be():
    picture = untrained("caption-attention", WORDS).task.source
    row = np.random.default_rng(2).integers(0, 256, (48, 48, 3), np.uint8)
    hidden = picture.hide(row, 7, 36, (6, 6))
    assert hidden is not None
    changed = np.argwhere((hidden != row).any(-1))
    assert changed.min(0).tolist() == [8, 8] and changed.max(0).tolist() == [15, 15]

    sound = untrained("speech-attention", LETTERS).task.source
    samples = np.full(16000, 1000, np.int16)
    silent = sound.hide(samples, 2, 25)
    assert silent is not None
    assert np.flatnonzero(silent == 0).tolist() == list(range(2 * 640, 3 * 640))


def test_input_effects_of_the_same_input_are_zero():
    bundle = untrained("chat-lstm", WORDS)
    raw, mask = bundle.task.read(["one two"])
    tokens, targets = torch.tensor([1, 5]), torch.tensor([5, 6])
    falls = input_effects(bundle.model, raw, mask, [(raw, mask), (raw, mask)], tokens, targets)
    assert falls.shape == (2, 2) and float(falls.abs().max()) < 1e-5


# -- markup


def test_no_text_becomes_markup():
    weights = softmax((2, 3, 6, 6))
    page = show_weights(weights, EVIL, title="<b>bold</b></title><script>alert(2)</script>")
    text = page.html
    elements = Elements(text)
    scripts = [attrs for tag, attrs in elements.tags if tag == "script"]
    assert [attrs for attrs in scripts if "type" not in attrs] == [{}]  # ours alone
    assert {attrs.get("type") for attrs in scripts} == {None, "application/json", "text/plain"}
    assert not [tag for tag, _ in elements.tags if tag == "b"]
    places = data_of(page)[0]["views"][0]["names"]["places"]
    assert places[:2] == EVIL[:2] and places[4] == "a\\u2028b\\x1b"
    assert "\x1b" not in text and "\u2028" not in text


def test_entries_of_tables_are_escaped_and_sorted_by_their_numbers():
    evil = "<img src=x onerror=alert(1)>"
    link = Entry(f"{evil}\x1b", link='a.html" onclick="alert(2)')
    table = Table(("n", "link"), ((Entry("2 million", 2e6), link), (None, Entry(evil))), wraps=True)
    page = Page("a title", (Section("", tables=(table,)),))
    elements = Elements(page.html)
    assert "img" not in [tag for tag, _ in elements.tags]
    assert not [name for _, attrs in elements.tags for name in attrs if name.startswith("on")]
    (address,) = (
        attrs["href"] for tag, attrs in elements.tags if tag == "a" and not attrs.get("class")
    )
    assert address == link.link and "\x1b" not in page.html
    cells = [attrs for tag, attrs in elements.tags if tag == "td"]
    assert [attrs.get("data-value") for attrs in cells] == ["2000000.0", None, "", None]
    assert [attrs["data-label"] for attrs in cells] == ["n", "link", "n", "link"]


def test_tables_and_texts_of_any_page_are_escaped():
    table = Table(("<i>name", "value"), (("<img src=x onerror=alert(1)>", 1.5), ("b", None)))
    section = Section("<u>", paragraphs=("<a href=x>",), tables=(table,), code="</pre><script>")
    page = Page("a title", (section,), kind="report", facts=(("<dt>", "</dl>"),))
    tags = [tag for tag, _ in Elements(page.html).tags]
    assert not {"i", "img", "u"} & set(tags) and tags.count("script") == 2
    assert tags.count("a") == 1  # the link to the content
    assert 'data-value="1.5"' in page.html and ">–<" in page.html


def test_a_page_names_no_address():
    page, _ = page_of("caption", effect=True)
    tags = Elements(page.html).tags
    for _, attributes in tags:
        for name in ("src", "href", "action", "poster", "srcset"):
            assert (attributes.get(name) or "#").startswith(("data:", "#"))
    policy = [attributes for _, attributes in tags if attributes.get("http-equiv")]
    assert "default-src 'none'" in str(policy[0]["content"])

    folder = Path(regard.__file__).parent / "pages"
    script = (folder / "page.js").read_text("utf-8")
    script = script.replace("http://www.w3.org/2000/svg", "")  # a name, not an address
    assert not REQUESTS.findall(script) and not MARKUP.findall(script)
    style = (folder / "page.css").read_text("utf-8")
    assert "url(" not in style and "@import" not in style


def test_json_cannot_end_its_element():
    text = json_text({"a": "</script><!--&"})
    assert not set("<>&") & set(text) and json.loads(text) == {"a": "</script><!--&"}


def test_pages_are_ours_and_others_are_not_overwritten(tmp_path: Path):
    page = show_weights(softmax((3, 3)), ["a", "b", "c"])
    path = page.save(tmp_path / "page.html")
    assert MADE_BY in path.read_text("utf-8")[:4096]
    page.save(str(path))  # again, over our own
    other = tmp_path / "mine.html"
    other.write_text("<!DOCTYPE html><p>mine</p>")
    with pytest.raises(InputError, match="something that regard did not write"):
        page.save(other)
    assert other.read_text() == "<!DOCTYPE html><p>mine</p>"


# -- regard.show and regard.show_weights


@pytest.mark.parametrize("shape", [(3, 5), (2, 3, 5), (4, 2, 3, 5)])
@pytest.mark.parametrize("form", ["numpy", "torch", "bfloat16", "list"])
def test_weights_of_any_shape_and_library(shape: tuple[int, ...], form: str):
    weights: Any = softmax(shape)
    if form == "torch":
        weights = torch.tensor(weights, requires_grad=True)
    elif form == "bfloat16":
        weights = torch.tensor(weights, dtype=torch.bfloat16)
    elif form == "list":
        weights = weights.tolist()
    page = regard.show_weights(weights, list("abcde"), list("xyz"))
    (part,) = page.data["views"][0]["parts"]
    full = (1,) * (4 - len(shape)) + shape
    assert (len(part["layers"]), len(part["layers"][0]["heads"])) == full[:2]


def test_weights_as_other_libraries_return_them():
    layers = tuple(torch.tensor(softmax((1, 2, 3, 3), seed)) for seed in range(5))
    (part,) = regard.show_weights(layers, list("abc")).data["views"][0]["parts"]
    assert [layer["layer"] for layer in part["layers"]] == [0, 1, 2, 3, 4] and part["square"]


@pytest.mark.parametrize(
    ("weights", "source", "target", "said"),
    [
        (np.ones(3), list("abc"), None, "must have shape (T, S)"),
        (np.ones((2, 3)), list("abc"), None, "give target="),
        (np.ones((2, 3)), list("abc"), list("a"), "2 x 3 for tokens: 3 of source and 1 of target"),
        (np.full((3, 3), np.nan), list("abc"), None, "must be finite"),
        ("weights", list("abc"), None, "an array of numbers"),
        (np.ones((3, 3)), "abc", None, "must be a list of tokens"),
        ([np.ones((1, 2, 2)), np.ones((1, 3, 3))], list("abc"), None, "the same shape"),
    ],
)
def test_mistakes_are_named(weights, source, target, said: str):
    with pytest.raises(InputError, match=re.escape(said)):
        regard.show_weights(weights, source, target)


def test_scores_that_are_no_weights_have_colours_on_both_sides_of_zero():
    page = regard.show_weights(np.array([[-3.0, 2.0]]), list("ab"), ["t"])
    (part,) = page.data["views"][0]["parts"]
    assert (part["low"], part["high"]) == (-3, 3)


def test_an_answer_is_shown_with_and_without_its_model():
    bundle = untrained("chat-transformer", WORDS)
    answer = bundle.ask("one two", greedy=True, max_new_tokens=3)
    last_layer = regard.show(answer)
    assert [part["id"] for part in last_layer.data["views"][0]["parts"]] == ["cross"]
    frame = last_layer._repr_html_()
    assert frame.startswith("<iframe") and frame.count("<") == 2  # the page is an attribute
    assert "allow-same-origin" not in frame

    whole = regard.show(answer, bundle, "one two", effect=True)
    assert "effect" in [part["id"] for part in whole.data["views"][0]["parts"]]
    assert len(regard.show([answer, answer]).data["views"]) == 2


def test_show_says_what_it_needs():
    answer = Answer(tokens=(), text="", score=0.0)
    with pytest.raises(InputError, match="needs the model and the input"):
        regard.show(answer)
    with pytest.raises(InputError, match="one Answer, or two"):
        regard.show(["text"])  # pyright: ignore[reportArgumentType]
    with pytest.raises(InputError, match="one Answer, or two.*got 1 values of type NoneType"):
        regard.show(None)  # pyright: ignore[reportArgumentType]
    with pytest.raises(InputError, match="a model and the input of one answer"):
        regard.show(answer, untrained("chat-lstm", WORDS))


# -- figures


@pytest.mark.parametrize("name", ["words", "transformer", "speech", "caption", "no attention"])
def test_figures_without_a_browser(name: str, tmp_path: Path):
    _, subject = page_of(name, effect=True)
    view, texts = subject_view(subject)
    figure = attention_figure([(view, texts)], titles=["a $title$ <&>"])
    for ending in ("png", "svg"):
        path = tmp_path / f"map.{ending}"
        write_figure(path, figure)
        write_figure(path, figure)  # over our own
    assert "<dc:title>made by regard</dc:title>" in (tmp_path / "map.svg").read_text()[:4096]
    mine = tmp_path / "mine.svg"
    mine.write_text("<svg/>")
    with pytest.raises(InputError, match="did not write"):
        write_figure(mine, figure)


def images(figure: Any, title: str) -> list[Any]:
    """The values drawn below each title that begins so."""
    axes = [ax for ax in figure.axes if ax.get_title(loc="left").startswith(title)]
    return [np.asarray(ax.images[0].get_array()) for ax in axes]


def title_of(figure: Any) -> str:
    """The title of the lower part of a figure of two views."""
    return " ".join(figure.subfigs[1].get_suptitle().split())


def weights_view(values: np.ndarray, rows: Sequence[str], columns: Sequence[str]) -> View:
    part = Part("cross", "attention", "a map", "steps", "places", ((0, values[None]),))
    return View("v", {"steps": rows, "places": columns}, (part,))


def test_a_figure_of_two_views_has_their_difference():
    draw = np.random.default_rng(3)
    first = draw.random((3, 5))
    second = draw.random((4, 5))
    columns = ["a", "b", "c", "d", "e"]
    one = weights_view(first, ["x", "y", "z"], columns)
    other = weights_view(second, ["w", "x", "z", "v"], columns)
    (difference,) = images(attention_figure([(one, {}), (other, {})]), "difference")
    np.testing.assert_allclose(difference, second[[1, 2]] - first[[0, 2]])
    title = title_of(attention_figure([(one, {}), (other, {})]))
    assert title.startswith("Difference: second minus first.")
    assert title.endswith("Left out: of the first y; of the second w, v.")

    same_size = weights_view(second[:3], ["x", "q", "z"], columns)
    figure = attention_figure([(one, {}), (same_size, {})])
    (difference,) = images(figure, "difference")
    np.testing.assert_allclose(difference, second[:3] - first)
    lower = figure.subfigs[1].axes[0]
    assert [label.get_text() for label in lower.get_yticklabels()] == ["x", "y | q", "z"]
    assert "Left out" not in title_of(figure)


def test_a_figure_says_why_it_has_no_difference():
    one = weights_view(np.eye(2), ["x", "y"], ["a", "b"])
    other = weights_view(np.eye(3), ["u", "v", "w"], ["a", "b", "c"])
    figure = attention_figure([(one, {}), (other, {})])
    assert title_of(figure) == "No difference: the two maps have no tokens in common."
    assert not images(figure, "difference")
    effects = replace(one.parts[0], id="effect", low=-1.0)
    figure = attention_figure([(one, {}), (replace(one, parts=(effects,)), {})])
    assert title_of(figure) == "No difference: one of the two has no such map."


@pytest.mark.parametrize("name", ["transformer", "speech", "caption", "no attention"])
def test_two_answers_of_a_model_are_drawn_with_their_difference(name: str, tmp_path: Path):
    _, subject = page_of(name, effect=True)
    views = [subject_view(subject)] * 2
    figure = attention_figure(views, titles=["one", "two"])
    differences = images(figure, "difference")
    assert len(differences) == (1 if name == "no attention" else 2)
    assert not any(values.any() for values in differences)
    write_figure(tmp_path / "map.png", figure)


def test_figures_of_a_layer_or_head_that_is_not_there():
    _, subject = page_of("transformer")
    view, texts = subject_view(subject)
    with pytest.raises(InputError, match=r"--layer: no such layer; got 17"):
        attention_figure([(view, texts)], layer=17)
    with pytest.raises(InputError, match=r"--head: no such head; got 99"):
        attention_figure([(view, texts)], head=99)
