"""Recipes: values, inheritance, overrides, and above all the error messages."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard import recipe
from regard.errors import RecipeError
from regard.recipe import Recipe, renamed

BASE = "chat-attention"
SCORES = ["perplexity", "chrf", "bleu", "bleu_4", "exact", "accuracy", "f1", "cer", "wer"]


def load(name: str | Path, overrides: Sequence[str] = ()) -> Any:
    """A recipe, as Any: the fields of a section depend on its kind, which each test knows."""
    return recipe.load(name, overrides)


def message(*overrides: str, name: str | Path = BASE) -> str:
    with pytest.raises(RecipeError) as caught:
        load(name, overrides)
    return str(caught.value)


def write(folder: Path, text: str | bytes, name: str = "mine.toml") -> Path:
    file = folder / name
    file.write_bytes(text.encode() if isinstance(text, str) else text)
    return file


# ---------------------------------------------------------------------------------- values in place


def test_saved_and_read_again_is_the_same():
    for name in recipe.names():
        shipped = load(name)
        assert Recipe.from_json(json.loads(json.dumps(shipped.to_json()))) == shipped


def test_recipes_are_frozen():
    with pytest.raises(ValueError, match="frozen"):
        load(BASE).seed = 2


def test_overrides_are_toml_values_or_bare_words():
    changed = load(
        BASE,
        [
            "encoder.cell=gru",
            "seed = 7",
            'data.topics=["ai", "humor"]',
            "train.learning_rate=1e-2",
            "search.do_sample=true",
        ],
    )
    assert changed.encoder.cell == "gru"
    assert changed.seed == 7
    assert changed.data.topics == ("ai", "humor")
    assert changed.train.learning_rate == 0.01
    assert changed.search.do_sample is True


def test_a_later_override_wins_and_a_value_may_hold_an_equals_sign():
    assert load(BASE, ["seed=2", "seed=3", "summary=a=b"]).seed == 3
    assert load(BASE, ["summary=a=b"]).summary == "a=b"


def test_what_looks_like_a_date_is_a_word():
    assert load(BASE, ["data.kind=pairs", "data.path=2024-01-01"]).data.path == "2024-01-01"


def test_an_override_without_value_goes_back_to_the_default():
    changed = load(BASE, ["train.steps=", "train.epochs=3"])
    assert changed.train.steps is None
    assert changed.train.epochs == 3


def test_another_kind_keeps_the_fields_both_have():
    before = load(BASE, ["encoder.width=96"])
    after = load(BASE, ["encoder.width=96", "encoder.kind=transformer"])
    assert after.encoder.kind == "transformer"
    assert after.encoder.width == 96
    assert after.encoder.layers == before.encoder.layers
    assert not hasattr(after.encoder, "cell")


def test_order_of_kind_and_field_does_not_matter():
    assert load(BASE, ["encoder.heads=2", "encoder.kind=transformer"]) == load(
        BASE, ["encoder.kind=transformer", "encoder.heads=2"]
    )


def test_the_decoder_has_its_encoders_width_unless_it_names_one():
    assert load(BASE, ["encoder.width=62"]).decoder.width == 62
    changes = ["encoder.width=62", "decoder.width=31", "decoder.shared=false"]
    assert load(BASE, changes).decoder.width == 31
    assert load(BASE, ["encoder.width="]).decoder.width == recipe.WIDTH


@pytest.mark.parametrize(
    ("width", "heads"),
    [(1, 1), (32, 1), (64, 1), (192, 3), (200, 4), (256, 4), (500, 10), (509, 1), (1024, 16)],
)
def test_heads_follow_from_the_width(width: int, heads: int):
    encoder = load("chat-transformer", [f"encoder.width={width}"]).encoder
    assert encoder.heads == heads
    assert encoder.head_width * encoder.heads == width
    assert encoder.ffn_width == 4 * width


def test_heads_of_any_width_where_it_is_named():
    encoder = load(
        "chat-transformer", ["encoder.width=1024", "encoder.heads=4", "encoder.head_width=192"]
    ).encoder
    assert (encoder.heads, encoder.head_width) == (4, 192)


def test_the_decoders_learning_rate_is_derived_from_the_learning_rate():
    assert load(BASE, ["train.learning_rate=0.5"]).train.decoder_learning_rate == 0.5
    changes = ["train.learning_rate=0.5", "train.decoder_learning_rate=0.25"]
    assert load(BASE, changes).train.decoder_learning_rate == 0.25


def test_override_of_a_saved_recipe():
    changed = load(BASE).override(
        ["search.do_sample=false", "search.num_beams=4", "search.candidates=3"]
    )
    assert (changed.search.num_beams, changed.search.candidates) == (4, 3)
    with pytest.raises(
        RecipeError,
        match=r'^--set: search.num_beam: no such field; got 4; did you mean "num_beams"\?$',
    ):
        load(BASE).override(["search.num_beam=4"])


def test_differences_name_the_fields_but_not_the_summary():
    assert recipe.differences(load(BASE), load(BASE)) == []
    assert recipe.differences(load(BASE), load(BASE, ["summary=other", "tokenizer.size=500"])) == [
        f"tokenizer.size: {load(BASE).tokenizer.size} -> 500"
    ]
    lines = recipe.differences(load(BASE), load(BASE, ["encoder.kind=transformer"]))
    assert 'encoder.kind: "recurrent" -> "transformer"' in lines
    assert 'encoder.cell: "lstm" -> null' in lines


# ------------------------------------------------------------------------------------------ extends


def test_extends_takes_what_the_file_does_not_say(tmp_path: Path):
    mine = load(write(tmp_path, 'extends = "chat-attention"\n[decoder]\nattention = "dot"\n'))
    assert mine.decoder.attention == "dot"
    assert mine.encoder == load(BASE).encoder
    assert mine.summary == ""  # the base's describes the base


def test_extends_another_kind_replaces_the_section(tmp_path: Path):
    mine = load(write(tmp_path, 'extends = "chat-attention"\n[encoder]\nkind = "transformer"\n'))
    assert mine.encoder == recipe.EncoderTransformer(kind="transformer")


def test_extends_a_file_beside_it(tmp_path: Path):
    write(tmp_path, re.sub(r"width = \d+", "width = 38", recipe.text(BASE)), "base.toml")
    assert load(write(tmp_path, 'extends = "base.toml"\nseed = 5\n')).encoder.width == 38


def test_extends_one_level_only(tmp_path: Path):
    file = write(tmp_path, 'extends = "chat-gru"\n')
    assert message(name=file) == (
        f"{file}: extends: one level only; got chat-gru, which extends chat-attention; "
        'extend "chat-attention" and copy what chat-gru changes'
    )


def test_extends_an_unknown_recipe(tmp_path: Path):
    file = write(tmp_path, 'extends = "chat-grew"\n')
    assert (
        message(name=file)
        == f'{file}: extends: chat-grew: no such recipe; did you mean "chat-gru"?'
    )


# ------------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("encoder.widht=3", 'encoder.widht: no such field; got 3; did you mean "width"?'),
        (
            "encoder.heads=4",
            'encoder.heads: no such field; got 4; kind "recurrent" has none, "transformer" has',
        ),
        ("train.num_beams=2", "train.num_beams: no such field; got 2; it belongs in [search]"),
        ("sed=3", 'sed: no such field; got 3; did you mean "seed"?'),
        ("encodr.width=3", 'encodr: no such section; got {"width": 3}; did you mean "encoder"?'),
        (
            "encoder.kind=transformr",
            'encoder.kind: no such kind; got "transformr"; did you mean "transformer"?',
        ),
        (
            "source.kind=smell",
            (
                'source.kind: no such kind; got "smell"; '
                "known: convolutions, patches, residual, sound, tokens"
            ),
        ),
        ("encoder.cell=rnn", 'encoder.cell: must be "lstm" or "gru"; got "rnn"'),
        (
            "encoder.width=wide",
            'encoder.width: must be a whole number >= 1 and <= 1,048,576; got "wide"',
        ),
        ("encoder.width=0", "encoder.width: must be a whole number >= 1 and <= 1,048,576; got 0"),
        (
            "encoder.width=true",
            "encoder.width: must be a whole number >= 1 and <= 1,048,576; got true",
        ),
        (
            "encoder.width=12.0",
            "encoder.width: must be a whole number >= 1 and <= 1,048,576; got 12.0",
        ),
        (
            "encoder.directions=true",
            "encoder.directions: must be a whole number >= 1 and <= 2; got true",
        ),
        ("encoder.dropout=1.0", "encoder.dropout: must be a number >= 0 and < 1; got 1.0"),
        ("encoder=3", "encoder: must be a section, [encoder]; got 3"),
        ("train.learning_rate=0", "train.learning_rate: must be a number > 0; got 0"),
        ("train.learning_rate=-1e-3", "train.learning_rate: must be a number > 0; got -0.001"),
        ("train.learning_rate=nan", "train.learning_rate: must be a number > 0; got NaN"),
        ("train.learning_rate=inf", "train.learning_rate: must be a number > 0; got Infinity"),
        (
            "train.betas=[0.9]",
            "train.betas: must be a list of 2, each a number >= 0 and < 1; got [0.9]",
        ),
        (
            "train.score=blue",
            f'train.score: must be {" or ".join(map(json.dumps, SCORES))}; got "blue"',
        ),
        (
            "train.score=bleu",
            'train.score: no score of task "chat"; got "bleu"; known: perplexity, chrf',
        ),
        (
            "data.kind=digits",
            (
                'data.kind: not for task "chat"; got "digits"; '
                "known: chatterbot, pairs, cornell, dailydialog, dialogues, mixture"
            ),
        ),
        ("train.minutes=0", "train.minutes: must be a number > 0; got 0"),
        (
            "train.steps=",
            "train: a budget is missing; give at least one of steps, epochs, tokens, minutes",
        ),
        ("data.topics=ai", 'data.topics: must be a list, each text; got "ai"'),
        (
            "search.min_new_tokens=99",
            (
                "search: min_new_tokens must not be above max_new_tokens; "
                "got min_new_tokens = 99, max_new_tokens = 48"
            ),
        ),
        (
            "search.do_sample=false",
            (
                "search: candidates above 1 need do_sample = true or as many num_beams; "
                "got candidates = 16, num_beams = 1"
            ),
        ),
        (
            "encoder.width=191",
            (
                'encoder: two concatenated directions need an even width, or merge = "sum"; '
                "got width = 191"
            ),
        ),
    ],
)
def test_one_mistake_is_one_line(override: str, expected: str):
    assert message(override) == f"--set: {expected}"


@pytest.mark.parametrize("override", ["seed", "=3", ".seed=3", "train..rate=3", ""])
def test_an_override_has_a_form(override: str):
    assert (
        message(override)
        == f'--set: an override has the form section.field=value; got "{override}"'
    )


def test_an_override_cannot_be_value_and_section():
    assert (
        message("train=3", "train.learning_rate=3")
        == '--set: train is given both a value and fields; got "train.learning_rate=3"'
    )


def test_a_needed_field_is_named():
    assert message("data.kind=pairs") == f"{BASE}: data.path: missing; must be text"
    assert (
        message("tokenizer.kind=")
        == f"{BASE}: tokenizer.kind: missing; known: bpe, characters, labels, words"
    )


def test_sums_and_parts_must_fit():
    assert message("search.do_sample=true", "search.num_beams=2") == (
        "--set: search: do_sample = true needs num_beams = 1; got num_beams = 2"
    )
    assert message("data.valid=0.5", "data.test=0.5") == (
        "--set: data: valid and test must leave something to train on; got 0.5 + 0.5"
    )
    assert message("encoder.heads=5", name="chat-transformer") == (
        "--set: encoder: heads must divide width, or give head_width too; "
        "got heads = 5, width = 192"
    )
    assert message("decoder.width=64") == (
        f"{BASE}: decoder.shared: one embedding needs equal widths; "
        f"got encoder.width = {load(BASE).encoder.width}, decoder.width = 64"
    )
    assert message("search.mmi_weight=0.5", "source.prompt_dropout=0.0") == (
        "--set: search.mmi_weight: the model must learn answers without prompts; "
        "got mmi_weight = 0.5 with source.prompt_dropout = 0; "
        "set source.prompt_dropout, 0.1 for example"
    )
    load(BASE, ["search.mmi_weight=0.5", "source.prompt_dropout=0.1"])
    assert message("train.ctc_weight=0.3", "decoder.width=64", name="speech-attention") == (
        "--set: train.ctc_weight: needs a decoder as wide as the encoder; "
        "got encoder.width = 192, decoder.width = 64"
    )
    assert message("source.channels=[8]", name="speech-attention") == (
        "--set: source: channels must be as many as strides, or none; "
        "got channels = [8], strides = [2, 2]"
    )
    assert message("data.voices=9", "data.usual_test=false", name="speech-fsdd") == (
        "--set: data: voices need a test set of recordings: usual_test or hold_out; got voices = 9"
    )
    assert (
        message("train.ctc_weight=0.3")
        == "--set: train.ctc_weight: CTC is for speech only; got task = chat"
    )
    assert message("train.ctc_weight=0.3", "data.count_padding=true", name="speech-attention") == (
        "--set: train.ctc_weight: CTC cannot predict padding; got data.count_padding = true"
    )


def test_everything_wrong_is_said_at_once_and_who_said_it(tmp_path: Path):
    file = write(
        tmp_path, 'extends = "base.toml"\n[encoder]\nwidht = 3\n[decoder]\nattention = "dott"\n'
    )
    write(tmp_path, re.sub(r"size = \d+", "size = 2", recipe.text(BASE)), "base.toml")
    assert message("train.learning_rate=-1", "data.valid=2", name=file).split("\n  ") == [
        f"{file}: 5 things to fix",
        "--set: data.valid: must be a number >= 0 and < 1; got 2",
        "base.toml: tokenizer.size: must be a whole number >= 260 and <= 1,048,576; got 2",
        f'{file}: encoder.widht: no such field; got 3; did you mean "width"?',
        (
            f'{file}: decoder.attention: must be "none" or "dot" or "scaled" or "general" or '
            '"additive"; got "dott"'
        ),
        "--set: train.learning_rate: must be a number > 0; got -1",
    ]


def test_what_is_derived_from_a_mistake_is_not_a_second_one():
    assert message("encoder.width=x", name="chat-transformer").count("\n") == 0


def test_missing_sections(tmp_path: Path):
    lines = message(name=write(tmp_path, 'task = "chat"\n'))
    missing = [name for name in recipe.SECTIONS if f"the section [{name}] is missing" in lines]
    assert missing == ["data", "tokenizer", "encoder", "decoder", "train"]


def test_long_values_are_cut():
    assert len(message("encoder.cell=" + "x" * 10_000)) < 200


# ------------------------------------------------------------------------------------- former names


RENAMED_FIELDS = [
    (section, old, new) for section, names in renamed.FIELDS.items() for old, new in names.items()
]
RENAMED_KINDS = [
    (section, old, new) for section, names in renamed.KINDS.items() for old, new in names.items()
]


def kinds_with(section: str, field: str) -> list[str]:
    kinds = recipe.SECTIONS[section].items()
    return [kind for kind, model in kinds if field in model.model_fields]


def recipe_with(section: str, kind: str) -> str:
    """A shipped recipe whose section is of a kind."""
    for name in recipe.names():
        if getattr(getattr(load(name), section), "kind", "") == kind:
            return name
    return BASE


@pytest.mark.parametrize(("section", "old", "new"), RENAMED_FIELDS)
def test_a_former_field_is_answered_with_its_new_name(
    section: str, old: str, new: str, tmp_path: Path
):
    kinds = kinds_with(section, new)
    assert kinds, "the new name exists"
    assert not kinds_with(section, old), "the old name does not"
    for kind in kinds:
        fields = f'kind = "{kind}", {old} = 1' if kind else f"{old} = 1"
        name = recipe_with(section, kind)
        hint = f'{section}.{old}: no such field; got 1; did you mean "{new}"?'
        assert f"--set: {hint}" in message(f"{section} = {{{fields}}}", name=name)

        toml = f'extends = "{recipe_base(name)}"\n{section} = {{{fields}}}\n'
        file = write(tmp_path, toml)
        assert f"{file}: {hint}" in message(name=file)


def recipe_base(name: str) -> str:
    """The base of a shipped recipe, which can be extended."""
    return load(name).extends or name


@pytest.mark.parametrize(("section", "old", "new"), RENAMED_FIELDS)
def test_a_former_field_in_a_kind_without_it_names_the_kinds_that_have_it(
    section: str, old: str, new: str
):
    having = kinds_with(section, new)
    for kind in recipe.SECTIONS[section]:
        if kind not in having:
            change = f'{section} = {{kind = "{kind}", {old} = 1}}'
            hint = f'did you mean "{new}"? kind "{kind}" has none, '
            hint += " and ".join(f'"{other}"' for other in having)
            assert f"{section}.{old}: no such field; got 1; {hint}" in message(change)


@pytest.mark.parametrize(("old", "new"), renamed.SECTIONS.items())
def test_a_former_section_is_answered_with_its_new_name(old: str, new: str, tmp_path: Path):
    assert new in recipe.SECTIONS and old not in recipe.SECTIONS
    hint = f'{old}: no such section; got {{"size": 500}}; did you mean "{new}"?'
    assert message(f"{old}.size=500") == f"--set: {hint}"
    file = write(tmp_path, f'extends = "{BASE}"\n[{old}]\nsize = 500\n')
    assert message(name=file) == f"{file}: {hint}"


@pytest.mark.parametrize(("section", "old", "new"), RENAMED_KINDS)
def test_a_former_kind_is_answered_with_its_new_name(
    section: str, old: str, new: str, tmp_path: Path
):
    assert new in recipe.SECTIONS[section] and old not in recipe.SECTIONS[section]
    hint = f'{section}.kind: no such kind; got "{old}"; did you mean "{new}"?'
    assert message(f"{section}.kind={old}") == f"--set: {hint}"
    file = write(tmp_path, f'extends = "{BASE}"\n[{section}]\nkind = "{old}"\n')
    assert message(name=file) == f"{file}: {hint}"


# -------------------------------------------------------------------------------------------- files


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"seed = ", "not TOML: Invalid value (at end of document)"),
        (b"seed = 1\nseed = 2", "not TOML: Cannot overwrite a value (at end of document)"),
        (b'summary = "caf\xe9"', "not UTF-8 text; got byte 0xe9"),
        (b"\xff\xfes\x00", "not UTF-8 text; got byte 0xff"),
        (b"a = " + b"[" * 100_000, "not TOML: nested too deeply"),
        (b"#" * (recipe.LARGEST_FILE + 1), "too large for a recipe; got 1,048,577 bytes"),
    ],
    ids=["cut", "twice", "latin-1", "utf-16", "deep", "large"],
)
def test_files_that_are_no_recipes(tmp_path: Path, content: bytes, expected: str):
    file = write(tmp_path, content)
    assert message(name=file) == f"{file}: {expected}"


def test_a_byte_order_mark_and_windows_lines_are_fine(tmp_path: Path):
    file = write(tmp_path, b"\xef\xbb\xbf" + recipe.text(BASE).replace("\n", "\r\n").encode())
    assert load(file) == load(BASE)


def test_names_and_paths_that_are_not_there(tmp_path: Path):
    assert (
        message(name="chat-atention")
        == 'chat-atention: no such recipe; did you mean "chat-attention"?'
    )
    assert (
        message(name="chat-classic")
        == 'chat-classic: no such recipe; did you mean "reference/chat-classic"?'
    )
    assert (
        message(name="nowhere/chat-gru.toml")
        == 'nowhere/chat-gru.toml: no such file; did you mean "chat-gru"?'
    )
    assert message(name=tmp_path) == f"{tmp_path}: a recipe is a .toml file, this is a folder"


def test_names_that_are_too_long(tmp_path: Path):
    long = "x" * 300
    assert message(name=long) == f"{long}: File name too long"
    child = tmp_path / "child.toml"
    child.write_text(f'extends = "{long}"\n')
    assert message(name=child) == f"{child}: extends: {long}: File name too long"


LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
TREES = st.recursive(LEAVES, lambda s: st.lists(s) | st.dictionaries(st.text(), s), max_leaves=5)


@given(
    st.dictionaries(st.text(), TREES, max_size=4), st.sampled_from([*recipe.SECTIONS, "", "x.y"])
)
def test_nonsense_is_an_error_of_ours(tree: dict, section: str):
    base = load(BASE).to_json()
    with pytest.raises(RecipeError):
        Recipe.from_json(base | {section: tree | {"kind": 3}})


# ------------------------------------------------------------------------------------ documentation


def test_every_field_has_its_sentence():
    for section, kinds in {"": {"": Recipe}, **recipe.SECTIONS}.items():
        for kind, model in kinds.items():
            assert model.__doc__, (section, kind)
            for name, field in model.model_fields.items():
                assert name == "kind" or (field.description or "").rstrip().endswith("."), (
                    section,
                    kind,
                    name,
                )


def test_the_page_is_fresh():
    page = Path(__file__).parents[2] / "docs" / "recipes.md"
    assert page.read_text(encoding="utf-8") == recipe.document(), "stale: make docs"


def test_reading_recipes_does_not_load_torch():
    code = (
        f"import sys; from regard import recipe; recipe.load({BASE!r}); "
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ("search.min_new_tokens=2", "search.min_new_tokens: a label is one token; got 2"),
        ("search.mmi_weight=0.5", "search.mmi_weight: a label has no prior to subtract; got 0.5"),
        ("tokenizer={kind=[]}", "tokenizer.kind: no such kind"),
        ("encoder={kind=[1]}", "encoder.kind: no such kind"),
    ],
)
def test_search_options_that_labels_cannot_have_and_unknown_kinds(change: str, expected: str):
    with pytest.raises(RecipeError, match=re.escape(expected)):
        recipe.load("sentiment-lstm", [change, "source.prompt_dropout=0.1"])


def test_a_recipe_is_a_table():
    trees: list[Any] = [[], None, "chat"]
    for tree in trees:
        with pytest.raises(RecipeError, match="not a recipe"):
            recipe.Recipe.from_json(tree)
