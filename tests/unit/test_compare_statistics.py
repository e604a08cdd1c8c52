"""Statistics of comparisons: laws, parity with scipy, and simulations whose truth is known."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from scipy import stats

from bench import intervals
from regard import metrics
from regard.compare import statistics
from regard.compare.statistics import SeedScores, adjusted, mcnemar, randomisation
from regard.metrics import text_statistics

WORDS = ["the", "a", "cat", "dog", "sits", "on", "under", "red", "blue", "mat", "sofa"]
# Whose optional numbers are known here.
difference: Any = statistics.difference
estimate: Any = statistics.estimate
scipy_stats: Any = stats


def texts(draw: np.random.Generator, count: int) -> list[str]:
    return [" ".join(draw.choice(WORDS, 7)) for _ in range(count)]


def noisy(draw: np.random.Generator, lines: list[str], share: float) -> list[str]:
    """The lines with a share of their words replaced."""
    return [
        " ".join(str(draw.choice(WORDS)) if draw.random() < share else w for w in line.split())
        for line in lines
    ]


def bleu_runs(draw: np.random.Generator, references: list[str], shares: list[float]) -> SeedScores:
    groups = [[reference] for reference in references]
    answers = [noisy(draw, references, share) for share in shares]
    return SeedScores([text_statistics.bleu(lines, groups) for lines in answers])


def labels(draw: np.random.Generator, seeds: int, right: np.ndarray) -> SeedScores:
    """Runs whose answer to item i is right with the probability right[i]."""
    return SeedScores([metrics.share(draw.random(len(right)) < right) for _ in range(seeds)])


# -- laws ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("score", [text_statistics.bleu, text_statistics.chrf])
def test_identical_answers_have_p_1(score):
    """sacreBLEU 2.6 gives 1 / (n + 1)."""
    draw = np.random.default_rng(3)
    references = texts(draw, 23)
    answers = noisy(draw, references, 0.3)
    runs = SeedScores([score(answers, [[line] for line in references])])
    same = difference(runs, runs)
    assert (same.value, same.p_value, same.item_p_value) == (0.0, 1.0, 1.0)
    assert same.item_test == "approximate randomisation"


def test_identical_labels_have_p_1_whatever_the_seeds():
    draw = np.random.default_rng(4)
    for seeds in (1, 2, 3):
        runs = labels(draw, seeds, np.full(29, 0.7))
        same = difference(runs, runs)
        assert (same.value, same.p_value, same.item_p_value) == (0.0, 1.0, 1.0)


def test_the_other_way_round_has_the_other_sign():
    draw = np.random.default_rng(5)
    references = texts(draw, 31)
    a = bleu_runs(draw, references, [0.2, 0.3, 0.25])
    b = bleu_runs(draw, references, [0.3, 0.35])
    forth, back = difference(a, b), difference(b, a)
    assert forth.value == -back.value and forth.seeds == (3, 2) and back.seeds == (2, 3)
    assert forth.margin == pytest.approx(back.margin)
    assert forth.p_value == pytest.approx(back.p_value)
    assert forth.item_p_value == back.item_p_value
    assert forth.smallest == pytest.approx(back.smallest)


def test_a_score_is_the_mean_of_its_seeds_and_never_the_best():
    draw = np.random.default_rng(6)
    runs = bleu_runs(draw, texts(draw, 31), [0.1, 0.5, 0.3])
    score = estimate(runs)
    assert score.value == pytest.approx(np.mean([run.value for run in runs.statistics]))
    assert score.low < score.value < score.high
    assert score.value < max(run.value for run in runs.statistics)


def test_the_smallest_difference_is_more_than_the_margin():
    draw = np.random.default_rng(7)
    found = difference(labels(draw, 3, np.full(101, 0.6)), labels(draw, 3, np.full(101, 0.6)))
    assert found.smallest > found.margin > 0


def test_more_seeds_and_more_items_could_show_less():
    def smallest(seeds: int, items: int) -> float:
        draw = np.random.default_rng(8)
        right = draw.random(items)
        return difference(labels(draw, seeds, right), labels(draw, seeds, right)).smallest

    assert smallest(3, 1009) < smallest(3, 101) and smallest(13, 101) < smallest(2, 101)


def test_one_seed_has_an_interval_of_its_items_and_the_p_value_of_the_exact_test():
    draw = np.random.default_rng(9)
    a, b = labels(draw, 1, np.full(211, 0.8)), labels(draw, 1, np.full(211, 0.6))
    found = difference(a, b)
    assert not found.has_seeds and found.margin and found.item_test == "McNemar"
    assert found.p_value == found.item_p_value < 0.01


def test_scores_that_are_no_numbers_have_no_interval():
    infinite = metrics.perplexities([1e6, 1e6, 1e6], [1, 1, 1])
    assert math.isinf(infinite.value)
    fine = metrics.perplexities([2.0, 3.0, 4.0], [1, 1, 1])
    found = difference(SeedScores([infinite] * 2), SeedScores([fine] * 2))
    assert found.margin is None and found.p_value is None and found.to_json()["value"] is None
    single = metrics.share([True])
    assert estimate(SeedScores([single])).margin is None


def test_certain_differences_use_the_test_on_items():
    """All right against all wrong: there is no variance, and still no certainty."""
    right, wrong = metrics.share([True] * 7), metrics.share([False] * 7)
    found = difference(SeedScores([right] * 2), SeedScores([wrong] * 2))
    assert found.value == 1 and found.p_value == found.item_p_value
    assert 0 < found.p_value < 0.05


def seeds_of_perplexity(*values: float) -> SeedScores:
    """Runs whose items all have one perplexity each, with a little noise that both models share."""
    noise = np.random.default_rng(10).normal(0, 0.01, 31)
    nats = [math.log(value) + noise for value in values]
    return SeedScores([metrics.perplexities(own, np.ones(31)) for own in nats], is_log=True)


def test_perplexities_are_compared_by_ratios():
    found = difference(seeds_of_perplexity(20, 22, 24), seeds_of_perplexity(40, 44, 48))
    assert found.score == pytest.approx(-0.5, abs=1e-6) and found.low < -0.5 < found.high < 0
    tenfold = difference(seeds_of_perplexity(200, 220, 240), seeds_of_perplexity(400, 440, 480))
    for name in ("score", "low", "high", "p_value", "smallest_score", "item_p_value"):
        assert getattr(tenfold, name) == pytest.approx(getattr(found, name))
    other_way = found.reversed()
    assert other_way.score == pytest.approx(1) and other_way.high == pytest.approx(
        1 / (1 + found.low) - 1
    )


def test_the_score_of_perplexities_is_their_geometric_mean():
    runs = seeds_of_perplexity(20, 30, 40)
    of_noise = np.exp(np.random.default_rng(10).normal(0, 0.01, 31).mean())
    found = estimate(runs, bounds=(1.0, math.inf))
    assert found.score == runs.score == pytest.approx(of_noise * 24000 ** (1 / 3))
    assert 1 <= found.low < found.score < found.high


def test_one_bad_seed_does_not_decide_alone():
    """Two of three seeds are equal; the third one diverged. By arithmetic means the second model
    would be 30 times as good."""
    found = difference(seeds_of_perplexity(20, 21, 2000), seeds_of_perplexity(20, 21, 22))
    assert found.p_value > 0.05 and found.low < 0 < found.high
    assert found.score < 5


# -- parity ----------------------------------------------------------------------------------------


def test_without_item_noise_it_is_welchs_t_test():
    scores_a, scores_b = [3.0, 5.0, 4.5], [2.0, 2.5, 3.5, 1.5]
    a, b = (
        SeedScores([metrics.mean([value] * 41) for value in values])
        for values in (scores_a, scores_b)
    )
    found = difference(a, b, test_items=False)
    welch = scipy_stats.ttest_ind(scores_a, scores_b, equal_var=False)
    assert found.p_value == pytest.approx(welch.pvalue, rel=1e-6)
    low, high = welch.confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((low, high), rel=1e-6)


def test_with_one_seed_its_error_is_that_of_paired_differences():
    draw = np.random.default_rng(10)
    a, b = draw.normal(size=503), draw.normal(size=503)
    found = difference(SeedScores([metrics.mean(a)]), SeedScores([metrics.mean(b)]))
    assert found.error == pytest.approx((a - b).std(ddof=1) / math.sqrt(503), rel=0.1)


def test_randomisation_agrees_with_scipys_permutation_test():
    draw = np.random.default_rng(11)
    a, b = draw.normal(size=11), draw.normal(0.6, size=11)
    exact = scipy_stats.permutation_test(
        (a, b), lambda x, y: np.mean(x - y), permutation_type="samples", n_resamples=np.inf
    ).pvalue
    assert randomisation([metrics.mean(a)], [metrics.mean(b)]) == pytest.approx(exact, abs=0.03)


def test_randomisation_agrees_with_counting_bleu_again():
    """From exchanged texts, not from exchanged sums."""
    draw = np.random.default_rng(12)
    references = texts(draw, 5)
    groups = [[reference] for reference in references]
    a, b = noisy(draw, references, 0.1), noisy(draw, references, 0.4)

    def bleu(lines: list[str]) -> float:
        return text_statistics.bleu(lines, groups).value

    gaps = []
    for mask in range(32):
        swap = [bool(mask >> i & 1) for i in range(5)]
        first = [y if s else x for x, y, s in zip(a, b, swap, strict=True)]
        second = [x if s else y for x, y, s in zip(a, b, swap, strict=True)]
        gaps.append(abs(bleu(first) - bleu(second)))
    exact = np.mean(np.array(gaps) >= gaps[0] - 1e-9)
    p = randomisation([text_statistics.bleu(a, groups)], [text_statistics.bleu(b, groups)])
    assert p == pytest.approx(exact, abs=0.04)


def test_mcnemar_counts_discordant_items_only():
    a = np.array([True] * 12 + [False] * 3 + [True] * 50 + [False] * 9)
    b = np.array([False] * 12 + [True] * 3 + [True] * 50 + [False] * 9)
    assert mcnemar(a, b) == pytest.approx(2 * stats.binom.cdf(3, 15, 0.5))


def test_mcnemar_is_the_binomial_test_of_discordant_items():
    """Against scipy, and against adding up the outcomes that are no likelier."""
    for only_first in range(7):
        for only_second in range(7):
            a = np.array([True] * only_first + [False] * only_second + [True] * 5)
            b = np.array([False] * only_first + [True] * only_second + [True] * 5)
            count = only_first + only_second
            if not count:
                assert mcnemar(a, b) == 1
                continue
            p = mcnemar(a, b)
            assert p == pytest.approx(scipy_stats.binomtest(only_first, count, 0.5).pvalue)
            chances = [math.comb(count, k) / 2**count for k in range(count + 1)]
            as_extreme = [c for c in chances if c <= chances[only_first] * (1 + 1e-9)]
            assert p == pytest.approx(min(1.0, sum(as_extreme)))


def test_adjusting_is_scipys_false_discovery_control_of_the_known_ones():
    draw = np.random.default_rng(13)
    for count in (1, 2, 5, 11):
        p = draw.random(count)
        wanted = scipy_stats.false_discovery_control(p, method="bh").tolist()
        assert adjusted(p.tolist()) == pytest.approx(wanted)
        gaps = [None, *p.tolist(), None]
        assert adjusted(gaps)[1:-1] == pytest.approx(wanted)
        # by the definition: the least of n p / rank among those that are as large
        order = np.sort(p)
        ranks = np.arange(1, count + 1)
        for own, rate in zip(p, wanted, strict=True):
            rates = (count * order / ranks)[order >= own]
            assert rate == pytest.approx(min(1.0, rates.min()))


def test_many_pairs_are_adjusted():
    p = [0.001, 0.02, 0.03, 0.5]
    assert adjusted(p) == pytest.approx([0.004, 0.04, 0.04, 0.5])
    assert adjusted([]) == [] and adjusted([None]) == [None]


def test_rows_that_do_not_mean_the_same_are_not_exchanged():
    two, three = (
        metrics.Statistic(np.ones((5, 2)), np.sum),
        metrics.Statistic(np.ones((5, 3)), np.sum),
    )
    assert randomisation([two], [three]) is None


# -- simulations -----------------------------------------------------------------------------------

# Stated before the first run of these simulations. An interval may contain the truth in 92 to 98 %
# of comparisons. A model against itself may be called different in 2 to 8 %: below 5 % is
# conservative, which is allowed. It may not be above 5 % by more than chance: among 1,000
# comparisons at a rate of 5 %, more than `MOST` are called different once in a thousand times.
COMPARISONS = 1000
COVERED = (0.92, 0.98)
REJECTED = (0.02, 0.08)
MOST = int(scipy_stats.binom.ppf(0.999, COMPARISONS, 0.05))


@pytest.mark.parametrize("kind", intervals.KINDS)
@pytest.mark.parametrize("world", intervals.WORLDS)
def test_intervals_cover_the_truth_in_a_few_simulations(world: str, kind: str):
    """95 % of 40; fewer than 32 are covered once in a million times."""
    row = intervals.rates(world, kind, comparisons=40, seeds=3, items=97)
    assert row["covered"] >= 0.8


@pytest.mark.long
@pytest.mark.parametrize("sizes", [(3, 97), (3, 199), (3, 499), (5, 199)])
@pytest.mark.parametrize("kind", intervals.KINDS)
@pytest.mark.parametrize("world", intervals.WORLDS)
def test_rates_of_1000_simulations(world: str, kind: str, sizes: tuple[int, int]):
    seeds, items = sizes
    row = intervals.rates(world, kind, comparisons=COMPARISONS, seeds=seeds, items=items)
    assert COVERED[0] <= row["covered"] <= COVERED[1]
    if kind != "better":
        assert REJECTED[0] <= row["found"] <= REJECTED[1]
        assert row["found"] * COMPARISONS <= MOST
