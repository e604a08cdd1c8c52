"""regard: a workbench for attention models.

    bot = regard.train("chat-attention")   train a recipe; the trained model is a Bundle
    bot = regard.load("runs/demo")         the model of an earlier run
    bot.ask("Are you a robot?").text       one Answer; a list of them for a list of inputs
    bot.evaluate().scores                  how good it is on held-out examples
    regard.report("runs/demo")             a page about a run: scores, curves, errors, attention
    regard.show(answer)                    a page of its attention, in a notebook or a file
    regard.show_weights(weights, tokens)   the same for the weights of any model
    regard.attend(q, k, v, causal=True)    the attention core
    regard.budget("chat-attention")        what a model costs

A model is Frontend -> Encoder -> Memory -> Decoder. torch is imported when the first of these names
is used, so `import regard` is fast.
"""

from __future__ import annotations

import sys as _sys

# The start of `regard` imports little before it can catch Ctrl-C: no typing, no types.
TYPE_CHECKING = False
_ModuleType = type(_sys)

if TYPE_CHECKING:
    from regard.budget import budget as budget
    from regard.bundle import Bundle as Bundle
    from regard.bundle import load as load
    from regard.errors import RegardError as RegardError
    from regard.evaluate import Evaluation as Evaluation
    from regard.layers.attention import attend as attend
    from regard.layers.attention import attention_weights as attention_weights
    from regard.layers.maclaurin import MaclaurinState as MaclaurinState
    from regard.layers.maclaurin import maclaurin_attention as maclaurin_attention
    from regard.layers.maclaurin import maclaurin_error_bound as maclaurin_error_bound
    from regard.layers.maclaurin import maclaurin_features as maclaurin_features
    from regard.layers.multihead import MultiHead as MultiHead
    from regard.pages.answers import show as show
    from regard.pages.report import report as report
    from regard.pages.tensors import show_weights as show_weights
    from regard.search import Options as Options
    from regard.train.model import train as train
    from regard.values import Answer as Answer
    from regard.values import Piece as Piece

__version__ = "0.1.0"

_HOMES = {
    "Answer": "values",
    "Bundle": "bundle",
    "Evaluation": "evaluate",
    "MaclaurinState": "layers.maclaurin",
    "MultiHead": "layers.multihead",
    "Options": "search",
    "Piece": "values",
    "RegardError": "errors",
    "attend": "layers.attention",
    "attention_weights": "layers.attention",
    "budget": "budget",
    "load": "bundle",
    "maclaurin_attention": "layers.maclaurin",
    "maclaurin_error_bound": "layers.maclaurin",
    "maclaurin_features": "layers.maclaurin",
    "report": "pages.report",
    "show": "pages.answers",
    "show_weights": "pages.tensors",
    "train": "train.model",
}

__all__ = [
    "Answer",
    "Bundle",
    "Evaluation",
    "MaclaurinState",
    "MultiHead",
    "Options",
    "Piece",
    "RegardError",
    "attend",
    "attention_weights",
    "budget",
    "load",
    "maclaurin_attention",
    "maclaurin_error_bound",
    "maclaurin_features",
    "report",
    "show",
    "show_weights",
    "train",
]


def __getattr__(name: str) -> object:
    if name in _HOMES:
        from importlib import import_module

        module = import_module(f"regard.{_HOMES[name]}")
        return getattr(module, name)
    raise AttributeError(f"module 'regard' has no attribute {name!r}")


def __dir__() -> list[str]:
    """The public names and the attributes of the module."""
    hidden = {"annotations", "TYPE_CHECKING"}
    return sorted({*globals(), *__all__} - hidden)


class _Package(_ModuleType):
    """This package, whose names `train` and `budget` are always the functions.

    There are packages of the same names, and importing one would bind it here. What they contain is
    imported with `from`, as in `from regard.train import Reporter`.
    """

    def __setattr__(self, name: str, value: object) -> None:
        if name in ("budget", "train") and isinstance(value, _ModuleType):
            return
        super().__setattr__(name, value)


_sys.modules[__name__].__class__ = _Package
