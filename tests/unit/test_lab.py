"""The lab: its frame, and its experiments on attention. Every claim holds, under other settings
too, and none of them holds for something else: each experiment is also run with one thing wrong."""

from __future__ import annotations

import ast
import math
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any, Literal, Self

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field, model_validator

from regard import lab
from regard.cli import main
from regard.errors import InputError
from regard.lab import (
    claim_of,
    dense_map,
    equivariance,
    experiment,
    heads,
    merged,
    orthogonal,
    page,
    scores,
    statements,
)
from regard.lab.experiment import Claim, Report, Table, settings
from regard.layers.attention import attention_weights
from regard.pages.formulas import Formula
from regard.pages.shell import Page

DOCS = Path(__file__).parents[2] / "docs" / "lab"


def ran(module, *changes: str) -> Report:
    return module.run(settings(module.Settings, changes))


def refuted(report: Report) -> list[str]:
    return [claim.text for claim in report.claims if not claim.holds]


def broken(report: Report, *words: str) -> None:
    """Some claims do not hold, and those are the ones with these words."""
    texts = refuted(report)
    assert len(texts) == len(words), texts
    assert all(any(word in text for text in texts) for word in words), texts


# ---------------------------------------------------------------------------------------- the frame


class Dials(experiment.Settings):
    width: Annotated[int, Field(ge=2, le=64)] = 8
    """D."""
    laws: tuple[Literal["normal", "signs"], ...] = ("normal",)
    """Of the weights."""
    spread: float = 1.0
    """s."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.width == 13:
            raise ValueError("width must not be 13")
        return self


def test_overrides_become_settings():
    changed = settings(Dials, ["width=16", 'laws=["signs", "normal"]', "spread=2", "seed = 3"])
    assert changed == Dials(width=16, laws=("signs", "normal"), spread=2.0, seed=3)
    assert settings(Dials, ["width="]) == settings(Dials) == Dials()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (["widht=3"], '--set: widht: no such field; got 3; did you mean "width"?'),
        (["zzz=3"], "--set: zzz: no such field; got 3; known: laws, seed, spread, width"),
        (["width=x"], '--set: width: must be a whole number >= 2 and <= 64; got "x"'),
        (["width=1.5"], "--set: width: must be a whole number >= 2 and <= 64; got 1.5"),
        (["laws=[3]"], '--set: laws: must be a list, each "normal" or "signs"; got [3]'),
        (["spread=nan"], "--set: spread: must be a number; got NaN"),
        (["width=13"], "--set: width must not be 13"),
        (["width"], '--set: an override has the form field=value; got "width"'),
        (["=3"], '--set: an override has the form field=value; got "=3"'),
        (
            ["seed=-1", "widht=3"],
            (
                "--set: 2 things to fix\n"
                "  --set: seed: must be a whole number >= 0 and < 4,294,967,296; got -1\n"
                '  --set: widht: no such field; got 3; did you mean "width"?'
            ),
        ),
    ],
)
def test_what_is_wrong_with_overrides_is_said_at_once(changes: list[str], said: str):
    with pytest.raises(InputError) as error:
        settings(Dials, changes)
    assert str(error.value) == said


def test_an_unknown_experiment():
    with pytest.raises(
        InputError, match='lab: no such experiment; got "orthogonl"; did you mean "orthogonal"?'
    ):
        lab.load("orthogonl")


def test_what_a_report_says_follows_from_its_claims():
    right, wrong = Claim("a", "1", "1", True), Claim("b", "1", "2", False)
    sheet = experiment.figure()
    assert Report((right,), (), sheet).holds
    assert not Report((right, wrong), (), sheet).holds
    assert experiment.near("x", expected=2, measured=2.09, within=0.1).holds
    assert not experiment.near("x", expected=2, measured=2.11, within=0.1).holds
    assert not experiment.near("x", expected=2, measured=math.nan, within=0.1).holds
    assert experiment.zero("x", 1e-11).holds and not experiment.zero("x", 1e-9).holds
    assert not experiment.zero("x", math.nan).holds


@pytest.mark.parametrize("name", lab.names())
def test_every_experiment_says_what_it_is(name: str):
    """A claim, a formula, a sentence for every setting; page and index have the same claim."""
    module = lab.load(name)
    formula = (module.__doc__ or "").partition("\n\n")[2]
    claim = claim_of(module.__doc__)
    assert claim == lab.claims()[name] and claim.endswith(".") and formula.strip()
    assert all(field.description for field in module.Settings.model_fields.values())
    defaults = ", ".join(f"{key}={value}" for key, value, _ in page.described(module.Settings()))
    written = (DOCS / f"{name}.md").read_text("utf-8")
    assert written.startswith(f"# {name}\n\n{claim}\n\n")
    assert f"    $ regard lab {name}\n    {name}: {claim}\n    settings: {defaults}\n\n" in written
    assert "claims hold" in written
    assert f"| [{name}]({name}.md) | {claim} |\n" in (DOCS / "README.md").read_text("utf-8")


@pytest.mark.parametrize(
    "name",
    ["heads", "merged", "equivariance", "dense-map", "orthogonal", "statements", "depth"],
)
def test_the_output_on_a_page_is_the_real_one(name: str, tmp_path: Path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["lab", name]) == 0
    told = capsys.readouterr().out.splitlines()
    shown = (DOCS / f"{name}.md").read_text("utf-8").partition(f"    $ regard lab {name}\n")[2]
    for line, expected in zip(told, shown.splitlines(), strict=False):
        words, others = line.split(), expected.split()
        assert len(words) == len(others) and all(map(is_alike, words, others)), (line, expected)


def is_alike(word: str, expected: str) -> bool:
    """Whether two words are equal, or the same number up to rounding, which is another one on
    another processor."""
    try:
        return math.isclose(float(word.strip(",()")), float(expected.strip(",()")), rel_tol=0.01)
    except ValueError:
        return word == expected


def test_no_window_is_ever_asked_for():
    """pyplot looks for one."""
    for file in Path(lab.__file__).parent.glob("*.py"):
        imports = [
            node
            for node in ast.walk(ast.parse(file.read_bytes()))
            if isinstance(node, ast.Import | ast.ImportFrom)
        ]
        assert "pyplot" not in " ".join(map(ast.unparse, imports)), file


@given(
    st.one_of(
        st.integers(),
        st.floats(allow_nan=False, allow_infinity=False),
        st.sampled_from(["signs", "a b"]),
    )
)
def test_a_value_is_shown_as_it_may_be_typed(value):
    class Any(experiment.Settings):
        x: int | float | str

    assert settings(Any, [f"x={page.typed(value)}"]).x == value


class Words(experiment.Settings):
    word: str = "a"
    """A word."""


STUB: Any = SimpleNamespace(
    __doc__="A claim.\n\nFor all <b>:\n\n    a < b\n\nThat is all.",
    FORMULAS=((Formula("a < b", "a <i> is less"),),),
)


def stub_page(chosen: experiment.Settings, *notes: str) -> Page:
    sheet = experiment.figure(2, 2)
    sheet.subplots().plot([1, 2], [3, 4])
    table = Table("a <b> table", ("x_1", "y"), ((1, None), (4096, 0.123456)))
    claims = (Claim("<script>", "1 < 2", "1", False), Claim("1 is 1", "1", "1", True))
    return page.report_page("name", STUB, chosen, Report(claims, (table,), sheet, notes))


def test_a_page_has_the_whole_report():
    chosen = Dials(width=16, laws=("signs",))
    written = stub_page(chosen, "the machine is busy").html
    assert "<svg" in written and 'xlink:href="#' in written
    assert "a &lt;b&gt; table" in written and "4,096" in written and ">0.1235<" in written
    assert '<td class="bad" data-label="verdict">✗ does not hold</td>' in written
    assert '<td class="good" data-label="verdict">✓ holds</td>' in written
    assert "1 of 2 claims hold" in written and "the machine is busy" in written
    assert "<mi>a</mi><mo>&lt;</mo><mi>b</mi>" in written and "a &lt;i&gt; is less" in written
    assert written.index("For all &lt;b&gt;:") < written.index("<math") < written.index("That is")
    assert "regard lab name --set=width=16 &#39;--set=laws=[&#34;signs&#34;]&#39; --html" in written
    assert written == stub_page(chosen, "the machine is busy").html


def test_no_setting_becomes_markup():
    written = stub_page(Words(word="</pre><script>alert(1)</script>")).html
    assert written.count("<script") == 2  # the data, and the script of every page
    assert "alert(1)" in written


@pytest.mark.parametrize("name", lab.names())
def test_every_block_of_formulas_is_typeset(name: str):
    module = lab.load(name)
    in_text = [block for block in page.blocks(module.__doc__ or "") if page.is_formula(block)]
    assert len(in_text) == len(module.FORMULAS) >= 1
    for formula in chain(*module.FORMULAS):
        assert formula.parts and formula.caption.endswith(".")


@pytest.mark.parametrize(
    ("module", "count"), [(orthogonal, 2), (dense_map, 4), (equivariance, 2), (statements, 2)]
)
def test_panels_hold_all_that_a_figure_shows(module, count: int):
    """Each text and each axes lies within one of the panels that a phone shows."""
    sheet = ran(module).figure
    page.svg(sheet)
    boxes = page.panels(sheet)
    assert len(boxes) == count
    sheet.draw_without_rendering()  # measures the texts anew
    height = sheet.bbox.height
    titles = [text for part in (sheet, *sheet.subfigs) for text in part.texts]
    parts: list[Any] = [*sheet.axes, *titles]
    for axes in sheet.axes:
        parts += [axes.title, axes.xaxis.label, axes.yaxis.label, axes.get_legend()]
    for part in filter(None, parts):
        extent = part.get_window_extent()
        if extent.width == 0:  # an empty text
            continue
        left, top = extent.x0 * 0.72, (height - extent.y1) * 0.72
        right, bottom = extent.x1 * 0.72, (height - extent.y0) * 0.72
        assert any(
            box.left <= left and box.top <= top and right <= box.right and bottom <= box.bottom
            for box in boxes
        ), part


# ---------------------------------------------------------------------------------- all claims hold

FEW = ("samples=1000", "widths=[5, 11]", "head_widths=[1, 3, 17]")


@pytest.mark.parametrize(
    ("module", "changes"),
    [
        (scores, FEW),
        (scores, ("samples=2000", "spread=0.5", 'laws=["signs", "sparse"]', "widths=[7]",
                  "head_widths=[1, 37]")),
        (scores, ("samples=500", "spread=3", "keys=5", "widths=[13]", "head_widths=[1, 2, 5, 19]",
                  "seed=7")),
        (heads, ()),
        (heads, ("heads=1", "width=5", "seed=2")),
        (heads, ("heads=3", "width=6", "length=7", "seed=3")),
        (merged, ()),
        (merged, ("heads=1", "width=2", "head_width=2", "length=2", "seed=1")),
        (merged, ("heads=5", "width=10", "head_width=14", "length=7", "seed=4")),
        (equivariance, ()),
        (equivariance, ("length=3", "width=2", "permutations=6", "seed=1")),
        (equivariance, ("length=19", "width=14", "seed=5")),
        (dense_map, ()),
        (dense_map, ("length=2", "width=3", "seed=1")),
        (dense_map, ("length=7", "width=5", "seed=2")),
        (orthogonal, ()),
        (orthogonal, ("places=2", "width=2", "strength=0.1", "seed=1")),
        (orthogonal, ("places=11", "width=13", "strength=5", "seed=2")),
        (statements, ()),
        (statements, ("repeats=2", "attention=dot", "memory=1", "steps=1", "width=2", "seed=1")),
        (statements, ("repeats=31", "attention=additive", "memory=13", "steps=3", "width=6",
                      "seed=2")),
    ],
)  # fmt: skip
def test_every_claim_holds(module, changes: tuple[str, ...]):
    report = ran(module, *changes)
    assert refuted(report) == []
    assert all(len(row) == len(table.columns) for table in report.tables for row in table.rows)
    assert report.figure.axes


@pytest.mark.long
def test_scores_as_they_are_run_by_default():
    assert refuted(ran(scores)) == []


@pytest.mark.parametrize(
    "module", [heads, merged, equivariance, dense_map, orthogonal, statements, scores]
)
def test_the_same_settings_give_the_same_report(module):
    changes = FEW if module is scores else ()
    first, second = ran(module, *changes), ran(module, *changes)
    assert (first.claims, first.tables) == (second.claims, second.tables)
    third = ran(module, *changes, "seed=11")
    assert module is orthogonal or third.tables != first.tables or third.claims != first.claims


def test_a_seed_leaves_the_draws_of_others_alone():
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    ran(statements)
    assert torch.equal(torch.rand(3), expected)


# --------------------------------------------------------------------- and for nothing else: scores


def test_scores_scaled_by_k_are_too_small(monkeypatch):
    monkeypatch.setattr(
        scores.Sample, "scaled", property(lambda self: self.scores / self.head_width)
    )
    broken(
        ran(scores, *FEW),
        "after scaling the variance is s^4",
        "the scores are normal",
        "this is due to K, not D",
    )


def test_scores_of_weights_with_a_mean_are_not_of_mean_zero(monkeypatch):
    whole = scores.weights
    monkeypatch.setattr(scores, "weights", lambda law, shape, draws: whole(law, shape, draws) + 0.5)
    assert any("the mean is 0" in text for text in refuted(ran(scores, *FEW)))


def test_scores_of_longer_inputs_have_more_variance(monkeypatch):
    whole = scores.unit
    monkeypatch.setattr(scores, "unit", lambda shape, draws: 1.5 * whole(shape, draws))
    texts = refuted(ran(scores, *FEW, 'laws=["normal"]'))
    assert any("before scaling the variance is K s^4" in text for text in texts)


def test_a_softmax_of_unscaled_scores_is_told_from_a_scaled_one(monkeypatch):
    whole = scores.saturation
    monkeypatch.setattr(scores, "saturation", lambda *a: whole(*a)[::-1])
    broken(ran(scores, *FEW), "with scaling it does not", "without scaling softmax saturates")


@pytest.mark.parametrize("law", scores.EXCESS)
def test_laws_have_the_moments_that_the_prediction_needs(law: str):
    drawn = scores.weights(law, (400_000,), torch.Generator().manual_seed(1)).double()
    assert abs(drawn.mean()) < 0.01 and abs(drawn.var() - 1) < 0.02
    assert drawn.pow(4).mean().item() - 3 == pytest.approx(scores.EXCESS[law], abs=0.15)


# --------------------------------------------------------------------------------- heads and merged


def test_heads_scaled_otherwise_are_not_the_sum(monkeypatch):
    monkeypatch.setattr(heads, "attention_weights", lambda q, k: attention_weights(q, k, scale=1.0))
    broken(ran(heads), "concat(H_1 .. H_H) W^o")


def test_a_sum_of_low_rank_is_a_layer():
    """The least squares that find no layer near a free sum do find the one that is there."""
    draws = torch.Generator().manual_seed(3)
    z = torch.randn(97, 2 * 7, generator=draws, dtype=torch.float64)
    v, o = (
        torch.randn(2, *shape, generator=draws, dtype=torch.float64) for shape in ((7, 3), (3, 7))
    )
    found, bound = heads.nearest(z, v @ o, 3)
    assert found < 1e-9 and bound < 1e-12
    found, bound = heads.nearest(z, v @ o, 2)
    assert found > bound > 1e-3


def test_a_layer_is_never_nearer_than_the_bound_and_the_bound_is_exact_for_orthonormal_data():
    draws = torch.Generator().manual_seed(4)
    free = torch.randn(3, 5, 5, generator=draws, dtype=torch.float64)
    z = torch.linalg.qr(torch.randn(61, 15, generator=draws, dtype=torch.float64)).Q
    for k in (1, 2, 3, 4):
        found, bound = heads.nearest(z, free, k)
        assert found == pytest.approx(bound, rel=1e-9)


def test_free_heads_that_were_of_low_rank_would_refute_the_claim(monkeypatch):
    monkeypatch.setattr(heads, "nearest", lambda z, free, k: (0.0, 0.0))
    texts = refuted(ran(heads))
    assert any("heads of width K = 4 does not" in text for text in texts)


def test_merged_without_its_scale_is_another_attention(monkeypatch):
    monkeypatch.setattr(merged, "merge", lambda w_q, w_k: w_q @ w_k.mT)
    broken(
        ran(merged), "one matrix per head gives the same attention", "W~(t - s) gives every score"
    )


def test_were_rotary_no_turning_a_single_matrix_would_do(monkeypatch):
    monkeypatch.setattr(merged, "rotary", lambda x, places: x)
    broken(ran(merged), "no single matrix gives every score")


def test_merged_counts_the_parameters_of_the_layer():
    """K = D/H: H/2 times as many."""
    ((_, both, one, ratio),) = merged.counts(8, 64, [8])
    assert (both, one, ratio) == (2 * 8 * 8 * 64, 8 * 64 * 64, 4.0)


# -------------------------------------------------------------- equivariance, dense-map, orthogonal


def test_a_layer_that_knows_the_order_refutes_equivariance(monkeypatch):
    whole = equivariance.layer
    monkeypatch.setattr(
        equivariance,
        "layer",
        lambda x, w, order: whole(x, w, "causal" if order == "none" else order),
    )
    broken(
        ran(equivariance), "equivariant", "the mean of the outputs over the sequence is invariant"
    )


@pytest.mark.parametrize("order", ["causal", "sinusoidal", "rotary"])
def test_order_that_is_not_told_breaks_nothing(monkeypatch, order: str):
    whole = equivariance.layer
    monkeypatch.setattr(
        equivariance, "layer", lambda x, w, kind: whole(x, w, "none" if kind == order else kind)
    )
    broken(ran(equivariance), order)


def test_a_layer_that_is_invariant_refutes_the_claim_that_it_is_not(monkeypatch):
    monkeypatch.setattr(equivariance, "layer", lambda x, w, order: x.mean(0).expand_as(x))
    assert any("not invariant" in text for text in refuted(ran(equivariance)))


def test_the_dense_map_has_its_blocks_in_their_order(monkeypatch):
    kron = torch.kron
    monkeypatch.setattr(torch, "kron", lambda a, b: kron(b, a))
    texts = refuted(ran(dense_map))
    assert any("vec(Y) = (A kron W_v^T) vec(X)" in text for text in texts)
    assert any("vec(Q) = (I_N kron W_q^T) vec(X)" in text for text in texts)
    assert any("x_n^T W~ x_m" in text for text in texts)


def test_a_free_map_is_not_one_block_times_numbers():
    free = torch.randn(
        3 * 5, 3 * 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64
    )
    assert dense_map.block_rank(free, 3) == 9
    assert dense_map.zero_blocks(free, 3) == 0
    assert torch.equal(dense_map.blocks(free, 3)[3 * 1 + 2].view(5, 5), free[5:10, 10:15])


def test_orthogonal_with_the_usual_scaling_is_another_number(monkeypatch):
    monkeypatch.setattr(
        orthogonal, "attention_weights", lambda q, k, scale: attention_weights(q, k)
    )
    assert len(refuted(ran(orthogonal))) == 6


def test_were_the_output_its_input_the_claims_would_fall(monkeypatch):
    monkeypatch.setattr(
        orthogonal, "attention_weights", lambda q, k, scale: torch.eye(len(q), dtype=q.dtype)
    )
    assert any("output and input differ" in text for text in refuted(ran(orthogonal)))


def test_the_numbers_of_four_orthonormal_inputs():
    report = ran(orthogonal)
    rows: list[Any] = [row for row in report.tables[0].rows if row[0] == 1.0]
    ((_, own, other, _),) = rows
    assert (round(own, 4), round(other, 4)) == (0.4754, 0.1749)


# --------------------------------------------------------------------------------------- statements


@given(st.text("abc", min_size=1, max_size=12), st.text("abc", min_size=1, max_size=12))
def test_jaccard_is_never_above_cosine(a: str, b: str):
    assert statements.jaccard(a, b) <= statements.cosine(a, b) + 1e-12
    assert statements.jaccard(a, a) == 1 and statements.cosine(a, a) == 1


def test_similarities_that_forget_counts_refute_the_claims(monkeypatch):
    monkeypatch.setattr(statements, "overlap", lambda a, b: len(set(a) & set(b)))
    assert not ran(statements, "repeats=5").holds


def test_a_decoder_without_attention_refutes_the_claim(monkeypatch):
    whole = statements.gradients
    monkeypatch.setattr(statements, "gradients", lambda chosen, attention: whole(chosen, "none"))
    broken(ran(statements), "with attention, every output")


def test_rotary_turned_once_depends_on_the_place(monkeypatch):
    whole = statements.last_weights
    monkeypatch.setattr(
        statements,
        "last_weights",
        lambda *a, every_layer: whole(*a, every_layer=not every_layer),
    )
    broken(ran(statements), "rotary positions in every layer", "rotary is applied once")


@pytest.mark.parametrize("unit", [" ", "<metadata>", " xmlns:x"])
def test_a_figure_is_put_into_a_page_in_one_pass(unit: str):
    drawn = "<svg" + unit * 300_000 + ">"
    assert page._inline(drawn, "t") == drawn.replace("<svg", '<svg role="img" aria-label="t"')
    head = '<?xml?><svg xmlns:a="b"  xmlns="c" width="1">' + unit * 300
    assert page._inline(head + "<metadata>m</metadata>|", "t").startswith(
        '<svg role="img" aria-label="t" width="1">'
    )
