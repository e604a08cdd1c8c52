"""Comparisons: do these models differ, by how much, and at what cost?

    regard compare chat-lstm chat-gru --minutes 2

Contenders are recipes, which are trained with several seeds and the same budget on the same data,
or finished runs. docs/compare.md explains the results, docs/architecture.md the structure.

    plan.py        contenders, seeds, budget, tuning; what may be compared
    cells.py       trains and evaluates each contender with each seed
    items.py       what a run answers to each test item
    cost.py        multiplications, depth, memory; matched widths
    statistics.py  differences with intervals and p-values
    scored.py      scores of the contenders on the common items
    analysis.py    from cells to a comparison; pairs.py: verdicts, buckets, examples
    verdict.py     sentences
    record.py      the result as plain values
    draw.py        its picture
    ready.py       plans in files
"""
