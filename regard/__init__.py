"""regard: a workbench for attention. raw -> Frontend -> Source -> Encoder -> Memory -> Decoder -> Answer.

The attention core is at hand as `regard.attend(q, k, v)`, costs as `regard.budget("chat-attention")`; torch is imported
when the first of them needs it, so `import regard` is instant.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from regard.costs import budget as budget
    from regard.layers.attention import attend as attend
    from regard.layers.attention import attention_weights as attention_weights
    from regard.layers.maclaurin import MaclaurinState as MaclaurinState
    from regard.layers.maclaurin import maclaurin_attention as maclaurin_attention
    from regard.layers.maclaurin import maclaurin_error_bound as maclaurin_error_bound
    from regard.layers.maclaurin import maclaurin_features as maclaurin_features
    from regard.layers.multihead import MultiHead as MultiHead

__version__ = "0.1.0"

_HOMES = {
    "attend": "layers.attention",
    "attention_weights": "layers.attention",
    "budget": "costs",
    "maclaurin_attention": "layers.maclaurin",
    "maclaurin_error_bound": "layers.maclaurin",
    "maclaurin_features": "layers.maclaurin",
    "MaclaurinState": "layers.maclaurin",
    "MultiHead": "layers.multihead",
}

__all__ = [  # noqa: RUF022
    "attend",
    "attention_weights",
    "budget",
    "maclaurin_attention",
    "maclaurin_error_bound",
    "maclaurin_features",
    "MaclaurinState",
    "MultiHead",
]


def __getattr__(name: str) -> object:
    if name in _HOMES:
        return getattr(import_module(f"regard.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'regard' has no attribute {name!r}")
