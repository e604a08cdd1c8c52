"""The laws of what reads pictures: a row by itself, the grid it says it makes, and positions on
that grid."""

from __future__ import annotations

import itertools

import pytest
import torch

from regard.decoders import ClassifierDecoder
from regard.encoders import IdentityEncoder, TransformerEncoder
from regard.errors import InputError
from regard.frontends import Convolutions, Downsample, Frontend, Patches, ResidualConvolutions
from regard.layers.positions import (
    Alibi,
    Learned,
    NoPositions,
    Positions,
    Relative,
    Rotary,
    Sinusoidal,
)
from regard.layers.residual import PaddingMode, ResidualConvolution
from regard.layers.sizes import TransformerSizes
from regard.model import Model

SIZE, COLOURS, WIDTH, HEADS = (15, 21), 3, 12, 3
GRID = (5, 7)
FRONTENDS = {
    "pool": lambda: Convolutions(
        size=SIZE, channels_in=COLOURS, channels=[5, 7], padding=[1, 0], downsample="pool"
    ),
    "stride": lambda: Convolutions(
        size=SIZE, channels_in=COLOURS, channels=[5, 7], padding=[1, 0], downsample="stride"
    ),
    "residual": lambda: ResidualConvolutions(
        size=SIZE, channels_in=COLOURS, channels=[8, 11], blocks=1, stem=3, dropout=0.3
    ),
    "residual, edge": lambda: ResidualConvolutions(
        size=SIZE,
        channels_in=COLOURS,
        channels=[8, 11],
        blocks=1,
        stem=3,
        padding_mode="edge",
        dropout=0.3,
    ),
    "patches": lambda: Patches(size=SIZE, channels_in=COLOURS, patch=3, width=WIDTH, dropout=0.3),
}
POSITIONS = {
    "none": lambda: NoPositions(),
    "sinusoidal": lambda: Sinusoidal(width=WIDTH, axes=2),
    "learned": lambda: Learned(width=WIDTH, num_positions=GRID),
    "rotary": lambda: Rotary(head_width=WIDTH // HEADS, axes=2),
    "alibi": lambda: Alibi(heads=HEADS, axes=2),
    "relative": lambda: Relative(heads=HEADS, max_distance=GRID),
}


def pictures(rows: int = 5) -> torch.Tensor:
    return torch.randint(
        0,
        256,
        (rows, *SIZE, COLOURS),
        dtype=torch.uint8,
        generator=torch.Generator().manual_seed(1),
    )


def nothing_hidden(rows: int) -> torch.Tensor:
    return torch.ones(rows, 1, dtype=torch.bool)


def transformer(inputs: int, positions: Positions) -> TransformerEncoder:
    sizes = TransformerSizes(layers=2, width=WIDTH, heads=HEADS, ffn_width=17)
    return TransformerEncoder(sizes, inputs=inputs, positions=positions)


def build(frontend: str, encoder: str) -> Model:
    torch.manual_seed(3)
    sees: Frontend = FRONTENDS[frontend]()
    assert sees.grid is not None
    if encoder in ("all", "mean"):
        reads = IdentityEncoder(
            inputs=sees.width, places=sees.grid[0] * sees.grid[1], summary=encoder
        )
    else:
        reads = transformer(sees.width, Sinusoidal(width=WIDTH, axes=2))
    decoder = ClassifierDecoder(
        vocabulary=11,
        memory_width=reads.width,
        summary_width=reads.summary_width,
        num_special_tokens=4,
        end=2,
        hidden=[13],
    )
    return Model(frontend=sees, encoder=reads, decoder=decoder).double().eval()


@pytest.mark.parametrize(
    ("frontend", "encoder"), [*itertools.product(FRONTENDS, ["all", "mean", "transformer"])]
)
@torch.no_grad()
def test_a_row_is_read_as_if_alone(frontend: str, encoder: str):
    model, raw, start = build(frontend, encoder), pictures(), torch.ones(5, 1, dtype=torch.long)
    together = model(raw, nothing_hidden(5), start)
    order = torch.tensor([3, 0, 4, 1, 2])
    torch.testing.assert_close(model(raw[order], nothing_hidden(5), start), together[order])
    for row in range(5):
        alone = model(raw[row : row + 1], nothing_hidden(1), start[:1])
        torch.testing.assert_close(alone, together[row : row + 1])


@pytest.mark.parametrize("frontend", FRONTENDS)
@torch.no_grad()
def test_the_grid_is_what_it_says(frontend: str):
    sees = FRONTENDS[frontend]().eval()
    source = sees(pictures(), nothing_hidden(5))
    assert source.grid == sees.grid and source.features.shape == (
        5,
        sees.grid[0] * sees.grid[1],
        sees.width,
    )
    assert source.mask.all()
    with pytest.raises(
        InputError, match=r"pictures must have shape \(15, 21, 3\); got shape \(15, 21, 1\)"
    ):
        sees(pictures()[..., :1], nothing_hidden(5))


@pytest.mark.parametrize("downsample", ["pool", "stride"])
@pytest.mark.parametrize("size", [(28, 28), (11, 9), (8, 33), (13, 10)])
@torch.no_grad()
def test_grids_of_many_sizes(downsample: Downsample, size: tuple[int, int]):
    for padding in ([1], [0], [1, 0], [1, 1]):
        sees = Convolutions(
            size=size,
            channels_in=1,
            channels=[3] * len(padding),
            padding=padding,
            downsample=downsample,
        )
        assert (
            sees(torch.zeros(1, *size, 1, dtype=torch.uint8), nothing_hidden(1)).grid == sees.grid
        )


def test_what_cannot_be_cut_is_refused():
    with pytest.raises(InputError, match="too small for this many convolutions; got 4 x 4"):
        Convolutions(size=(4, 4), channels_in=1, channels=[3, 3, 3], padding=[0, 0, 0])
    with pytest.raises(InputError, match="patches must tile the picture; got 4 for 15 x 21"):
        Patches(size=SIZE, channels_in=1, patch=4, width=5)


@torch.no_grad()
def test_a_patch_is_its_own_square():
    """Changing one pixel changes the one place it lies in, in the order of rows."""
    sees = FRONTENDS["patches"]().eval()
    raw = pictures(1)
    other = raw.clone()
    other[0, 4, 8, 1] ^= 0xFF  # row 1, column 2 of the grid
    a, b = (sees(one, nothing_hidden(1)).features for one in (raw, other))
    assert (a != b).any(-1).nonzero()[:, 1].tolist() == [1 * GRID[1] + 2]


@pytest.mark.parametrize("positions", POSITIONS)
@torch.no_grad()
def test_positions_on_the_grid_tell_places_apart(positions: str):
    """Squares in another order are another picture, unless there are no positions (then the
    summary is the same)."""
    torch.manual_seed(3)
    sees = FRONTENDS["patches"]().eval()
    reads = transformer(WIDTH, POSITIONS[positions]()).double().eval()
    source = sees.double()(pictures(2), nothing_hidden(2))
    order = torch.randperm(GRID[0] * GRID[1], generator=torch.Generator().manual_seed(2))
    shuffled = type(source)(source.features[:, order], source.mask, source.grid)
    same = torch.allclose(reads(source).summary, reads(shuffled).summary, atol=1e-9)
    assert same == (positions == "none")


def test_positions_on_a_grid_need_one():
    reads = transformer(WIDTH, Sinusoidal(width=WIDTH, axes=2))
    source = FRONTENDS["patches"]()(pictures(1), nothing_hidden(1))
    with pytest.raises(InputError, match="need a grid; got a sequence"):
        reads(type(source)(source.features, source.mask, None))


@pytest.mark.parametrize("size", [(28, 28), (11, 9), (8, 33), (1, 5)])
@pytest.mark.parametrize("stem", [1, 2, 4])
@torch.no_grad()
def test_grids_of_residual_convolutions(stem: int, size: tuple[int, int]):
    sees = ResidualConvolutions(size=size, channels_in=1, channels=[3, 8, 5], blocks=1, stem=stem)
    assert sees(torch.zeros(1, *size, 1, dtype=torch.uint8), nothing_hidden(1)).grid == sees.grid


@pytest.mark.parametrize("padding_mode", ["zeros", "edge"])
@torch.no_grad()
def test_with_its_edge_around_no_place_of_an_even_picture_stands_out(padding_mode: PaddingMode):
    torch.manual_seed(3)
    sees = ResidualConvolutions(
        size=(24, 40), channels_in=1, channels=[8, 16], blocks=2, stem=2, padding_mode=padding_mode
    ).double()
    found = sees(torch.full((1, 24, 40, 1), 200, dtype=torch.uint8), nothing_hidden(1)).features[0]
    assert ((found - found[0]).abs().max() < 1e-9) == (padding_mode == "edge")


def test_a_residual_convolution_is_its_formula():
    torch.manual_seed(3)
    layer, x = (
        ResidualConvolution(channels=16).double(),
        torch.randn(2, 16, 5, 7, dtype=torch.float64),
    )

    def normal(y: torch.Tensor) -> torch.Tensor:  # groups of eight channels of one picture
        grouped = y.view(2, 2, -1)
        return (
            (grouped - grouped.mean(-1, keepdim=True))
            / (grouped.var(-1, False, keepdim=True) + 1e-5) ** 0.5
        ).view(y.shape)

    inner = torch.conv2d(normal(x).relu(), layer.first.weight, padding=1)
    torch.testing.assert_close(
        layer(x), x + torch.conv2d(normal(inner).relu(), layer.second.weight, padding=1)
    )
