"""The benchmark of attention: which seeds it trains."""

from __future__ import annotations

from argparse import Namespace

from bench.attention import seeds_of


def test_seed_0_is_a_seed():
    assert seeds_of(Namespace(only_seed=0, seeds=3)) == [0]
    assert seeds_of(Namespace(only_seed=None, seeds=3)) == [1, 2, 3]
