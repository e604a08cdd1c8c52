"""2-D convolutions that are right in half precision."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor, nn

from regard.device import without_autocast


class Conv2d(nn.Conv2d):
    """torch's, but on a CPU one with a stride is computed in the precision of its weights, also
    under autocast: on processors with AMX, torch's (2.13) gives wrong numbers in bfloat16 for some
    sizes, such as an output of one column."""

    def forward(self, x: Float[Tensor, "B C h w"]) -> Float[Tensor, "B O h2 w2"]:
        if not x.is_cpu or max(self.stride) == 1:
            return super().forward(x)
        with without_autocast(x.device):
            return super().forward(x.to(self.weight.dtype))
