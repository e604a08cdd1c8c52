"""The laws of sounds: log-mels as others make them, padding that is never heard, masks that
shrink with the length."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from regard.frontends import Sound
from regard.layers.mel import (
    log_mel,
    mel_filters,
    per_band_normalisation,
    spec_augment,
    time_stretch,
)
from regard.model import Model
from tests.laws.test_grammar import close
from tests.laws.variants import DECODERS, ENCODERS, INPUTS

MELS, WINDOW, HOP = 7, 26, 10


def sounds(rows: int = 5, length: int = 331, seed: int = 4) -> tuple[torch.Tensor, torch.Tensor]:
    """Samples, and a mask with rows of every length, the shortest of one sample."""
    draw = torch.Generator().manual_seed(seed)
    samples = torch.randint(-9000, 9000, (rows, length), generator=draw).to(torch.int16)
    lengths = torch.linspace(1, length, rows).long()
    mask = torch.arange(length) < lengths[:, None]
    return samples.masked_fill(~mask, 0), mask


def frontend(**more) -> Sound:
    torch.manual_seed(3)
    sizes: dict[str, Any] = (
        dict(rate=8000, mels=MELS, window=WINDOW, hop=HOP, width=INPUTS, strides=(1, 2, 2)) | more
    )
    return Sound(**sizes).double().eval()


# -- parity-----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rate", "window", "mels"), [(16000, 400, 80), (22050, 552, 80), (8000, 200, 40)]
)
def test_filters_are_those_of_transformers(rate: int, window: int, mels: int):
    audio = pytest.importorskip("transformers.audio_utils")
    theirs = audio.mel_filter_bank(
        window // 2 + 1, mels, 0.0, rate / 2, rate, norm="slaney", mel_scale="slaney"
    )
    torch.testing.assert_close(
        mel_filters(mels=mels, window=window, rate=rate), torch.from_numpy(theirs)
    )


def test_log_mels_are_those_of_whisper():
    transformers = pytest.importorskip("transformers")
    samples = torch.randn(20_011, generator=torch.Generator().manual_seed(1)) * 0.1
    theirs = transformers.WhisperFeatureExtractor(feature_size=80)(
        samples.numpy(), sampling_rate=16000, return_tensors="pt"
    )["input_features"][0]
    filters = mel_filters(mels=80, window=400, rate=16000).float()
    ours, real = log_mel(
        samples[None],
        torch.ones(1, 20_011, dtype=torch.bool),
        filters=filters,
        window=torch.hann_window(400),
        hop=160,
    )
    assert real.shape == (1, 125) and bool(real.all())
    torch.testing.assert_close(ours[0], theirs.T[:125], rtol=0, atol=1e-5)


def test_relative_levels_do_not_depend_on_how_loud_a_sound_is():
    raw, mask = sounds()
    raw = raw // 4
    for levels in ("relative", "bands"):
        hearing = frontend(levels=levels, dynamic_range=5.0)
        close(hearing(raw, mask).features, hearing(raw * 4, mask).features)
    assert not torch.allclose(frontend()(raw, mask).features, frontend()(raw * 4, mask).features)


def test_around_a_sound_there_is_silence():
    """What convolutions read beyond its edges is what they read where nothing is heard."""
    raw, mask = sounds(rows=1)
    raw[:, 100:200] = 0
    filters = mel_filters(mels=MELS, window=WINDOW, rate=8000)
    shape = torch.hann_window(WINDOW, dtype=torch.float64)
    energies, _ = log_mel(
        raw.double() / 32768,
        mask,
        filters=filters,
        window=shape,
        hop=HOP,
        dynamic_range=5.0,
        relative=True,
    )
    assert float(energies.max()) == 2.0 and float(energies[0, 12:18].abs().max()) == 0.0
    assert float(energies.min()) == 0.0


def test_bands_do_not_tell_through_what_they_came():
    """Another gain for each band and clip, which is what a microphone does, changes nothing."""
    draw = torch.Generator().manual_seed(2)
    features, mask = (
        torch.randn(3, 11, MELS, generator=draw).double(),
        torch.ones(3, 11, dtype=torch.bool),
    )
    mask[1, 6:] = False
    even = per_band_normalisation(features, mask)
    close(per_band_normalisation(features + torch.randn(3, 1, MELS, generator=draw), mask), even)
    close(even[1, :6].mean(0), torch.zeros(MELS).double())
    assert float(even[~mask].abs().max()) == 0 and 0.4 < float(even[0].std()) < 0.55


# -- padding----------------------------------------------------------------------------------------


@torch.no_grad()
@pytest.mark.parametrize(
    "encoder", ["recurrent-lstm-2-concatenate", "transformer-post-rotary", "convolution-relu-2-3"]
)
@pytest.mark.parametrize(
    "decoder",
    ["recurrent-lstm-general", "transformer-pre-sinusoidal", "recurrent-cross-attention-lstm"],
)
@pytest.mark.parametrize("channels", [(), (2, 3, 2)], ids=["time", "mels"])
def test_padding_changes_nothing(encoder: str, decoder: str, channels: tuple[int, ...]):
    torch.manual_seed(3)
    reads, writes = ENCODERS[encoder](), DECODERS[decoder]()
    levels = "bands" if encoder.startswith("recurrent") else "absolute"
    hears = frontend(levels=levels, channels=channels)
    model = Model(frontend=hears, encoder=reads, decoder=writes).double().eval()
    raw, mask = sounds()
    tokens = torch.randint(4, 23, (5, 6), generator=torch.Generator().manual_seed(1))
    together = model(raw, mask, tokens)
    for more in (1, 9, 57):
        wide = torch.nn.functional.pad(raw, (0, more)).masked_fill(
            ~torch.nn.functional.pad(mask, (0, more)), 12345
        )
        close(model(wide, torch.nn.functional.pad(mask, (0, more)), tokens), together)
    for r in range(5):
        length = int(mask[r].sum())
        close(
            model(raw[r : r + 1, :length], mask[r : r + 1, :length], tokens[r : r + 1])[0],
            together[r],
        )


@torch.no_grad()
def test_places_are_as_many_as_the_strides_leave():
    raw, mask = sounds()
    frames = (mask.sum(1) // HOP).clamp(min=1)
    for channels in ((), (2, 3, 2)):
        source = frontend(channels=channels)(raw, mask)
        assert (
            source.mask.sum(1).tolist()
            == ((frames + 1) // 2 + 1).div(2, rounding_mode="floor").tolist()
        )
        assert source.features.shape == (*source.mask.shape, INPUTS)


@torch.no_grad()
def test_what_a_convolution_over_the_mels_finds_moves_with_the_sound():
    """Two bands higher, and what it makes is one band higher: the edges apart, where there is
    nothing to see."""
    hearing = frontend(mels=24, strides=(1,), channels=(3,))
    energies = torch.randn(1, 1, 9, 24, generator=torch.Generator().manual_seed(2)).double()
    low, high = (hearing.layers[0](energies.roll(by, 3)) for by in (0, 2))
    close(high[..., 2:-1], low[..., 1:-2])


@torch.no_grad()
def test_a_fixed_number_of_frames_hides_nothing():
    raw, mask = sounds()
    for frames in (20, 50):  # cut, and filled up
        source = frontend(frames=frames)(raw, mask)
        assert source.features.shape[1] == -(-frames // 4) and bool(source.mask.all())
        wide = (
            torch.nn.functional.pad(raw, (0, 300), value=99),
            torch.nn.functional.pad(mask, (0, 300)),
        )
        close(frontend(frames=frames)(*wide).features, source.features)


# -- SpecAugment------------------------------------------------------------------------------------


@pytest.mark.parametrize("axis", [1, 2])
def test_bands_are_as_wide_as_allowed_and_only_where_there_is_sound(axis: int):
    features = torch.rand(200, 31, 17) + 1
    mask = torch.arange(31) < torch.arange(1, 201).clamp(max=31)[:, None]
    features = features.masked_fill(~mask[..., None], 0)
    torch.manual_seed(5)
    hidden = spec_augment(features, mask, axis=axis, count=2, widest=0.3)
    changed = (
        (hidden != features).all(2 if axis == 1 else 1) if axis == 1 else (hidden != features)[:, 0]
    )
    sizes = mask.sum(1) if axis == 1 else torch.full((200,), 17)
    assert (changed.sum(1) <= 2 * (0.3 * sizes + 1)).all() and changed.sum() > 200
    assert (hidden[~mask] == 0).all()
    torch.manual_seed(5)
    assert torch.equal(hidden, spec_augment(features, mask, axis=axis, count=2, widest=0.3))


def test_a_sound_that_is_stretched_goes_through_the_same_frames():
    features = torch.rand(3, 9, 4).double()
    mask = torch.arange(9) < torch.tensor([[9], [5], [1]])
    same, _ = time_stretch(features, mask, torch.ones(3, dtype=torch.float64))
    close(same, features.masked_fill(~mask[..., None], 0))
    twice, real = time_stretch(features, mask, torch.full((3,), 2.0, dtype=torch.float64))
    assert real.sum(1).tolist() == [18, 10, 2]
    close(twice[:2, :9:2], features[:2, :5])
    close(twice[:2, 1:8:2], (features[:2, :4] + features[:2, 1:5]) / 2)
    close(twice[2, :2], features[2, :1].expand(2, -1))
    assert time_stretch(features, mask, torch.full((3,), 0.5, dtype=torch.float64))[1].sum(
        1
    ).tolist() == [4, 2, 1]


def test_nothing_is_hidden_but_in_training():
    raw, mask = sounds()
    model = frontend(
        time_masks=2, time_mask_width=0.4, mel_masks=2, mel_mask_width=0.4, tempo_perturbation=0.3
    )
    close(model(raw, mask).features, frontend()(raw, mask).features)
    model.train()
    torch.manual_seed(1)
    first = model(raw, mask).features
    assert not torch.equal(first[:, :1], frontend()(raw, mask).features[:, :1])
    torch.manual_seed(1)
    assert torch.equal(first, model(raw, mask).features)
