"""Every recipe that ships can be read, says what it is, and is a base or a few lines upon one."""

from __future__ import annotations

import tomllib

import pytest

from regard import recipe


@pytest.mark.parametrize("name", recipe.names())
def test_it_is_in_order(name: str):
    shipped = recipe.load(name)
    assert shipped.summary.endswith(".")
    assert recipe.Recipe.from_json(shipped.to_json()) == shipped


@pytest.mark.parametrize("name", [name for name in recipe.names() if not name.startswith("reference/")])
def test_a_variant_is_a_few_lines_and_each_of_them_changes_something(name: str):
    written = tomllib.loads(recipe.text(name))
    if "extends" not in written:
        return
    assert len(recipe.text(name).splitlines()) <= 30
    changed = "\n".join(recipe.differences(recipe.load(written["extends"]), recipe.load(name)))
    for section, fields in written.items():
        if isinstance(fields, dict) and "kind" not in fields:
            for field in fields:
                assert f"{section}.{field}: " in changed


def test_no_two_are_the_same():
    shipped = [recipe.load(name) for name in recipe.names()]
    for i, one in enumerate(shipped):
        assert all(recipe.differences(one, other) for other in shipped[:i])


def test_the_classic_is_what_the_specification_says():
    classic = recipe.load("reference/chat-classic")
    assert (classic.data.kind, classic.data.max_words, classic.data.drop_unknown) == ("cornell", 9, True)
    assert (classic.codec.kind, classic.codec.min_count) == ("words", 3)
    assert (classic.encoder.layers, classic.decoder.layers) == (2, 2)
    assert (classic.encoder.width, classic.decoder.width) == (500, 500)
    assert classic.decoder.attention == "dot"
    assert (classic.train.rate, classic.train.decoder_rate, classic.train.clip) == (1e-4, 5e-4, 50)
    assert classic.train.steps == 4000
