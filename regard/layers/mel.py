"""Log-mel energies of sounds, and augmentation of them, as pure functions. Padding does not affect
the result: a clip gives the same numbers alone and in any batch.

    E[t, f] = | sum_n w[n] x[h t + n - W/2] exp(-2 pi i f n / W) |^2    W the window, h the hop
    L[t, m] = log10 max(1e-10, sum_f E[t, f] F[f, m])
    y = (max(L, max L - R) + 4) / 4                                    (Radford et al. 2022), R = 8

or, independent of the loudness of the clip, from 0 (silence) to 2,

    y = 2 (max(L, max L - R) - max L) / R + 2
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from regard.masks import from_lengths

QUIETEST = 1e-10  # smaller energies are raised to this


def hertz_to_mel(hertz: float) -> float:
    """Slaney's scale: linear up to 1,000 Hz (15 mels), then 27 mels for each factor of 6.4.

    >>> hertz_to_mel(200.0), round(hertz_to_mel(6400.0), 6)
    (3.0, 42.0)
    """
    return 3 * hertz / 200 if hertz < 1000 else 15 + 27 * math.log(hertz / 1000) / math.log(6.4)


def mel_to_hertz(mel: Float[Tensor, "*any"]) -> Float[Tensor, "*any"]:
    return torch.where(mel < 15, 200 * mel / 3, 1000 * torch.exp((mel - 15) * math.log(6.4) / 27))


def mel_filters(*, mels: int, window: int, rate: int) -> Float[Tensor, "F M"]:
    """Mel filters F of the formula: triangles on Slaney's scale from 0 Hz to rate / 2, each of area
    1."""
    hertz = torch.arange(window // 2 + 1, dtype=torch.float64) * rate / window
    corners = mel_to_hertz(torch.linspace(0, hertz_to_mel(rate / 2), mels + 2, dtype=torch.float64))
    left, centre, right = corners[:-2], corners[1:-1], corners[2:]
    rising = (hertz[:, None] - left) / (centre - left)
    falling = (right - hertz[:, None]) / (right - centre)
    return torch.minimum(rising, falling).clamp(min=0) * 2 / (right - left)


def frame_mask(mask: Bool[Tensor, "B N"], hop: int) -> Bool[Tensor, "B S"]:
    """The mask of the frames: one real frame for each whole hop of real samples, at least one."""
    return from_lengths((mask.sum(1) // hop).clamp(min=1), max(1, mask.shape[1] // hop))


def log_mel(
    samples: Float[Tensor, "B N"],
    mask: Bool[Tensor, "B N"],
    *,
    filters: Float[Tensor, "F M"],
    window: Float[Tensor, " W"],
    hop: int,
    dynamic_range: float = 8.0,
    relative: bool = False,
) -> tuple[Float[Tensor, "B S M"], Bool[Tensor, "B S"]]:
    """The levels y of the first formula, or of the second if `relative`, and the mask of the
    frames. `window` is w of the formula, `dynamic_range` is R. A clip is padded by reflection
    before its first sample and by zeros after its last."""
    size = len(window)
    half = size // 2
    samples = samples.masked_fill(~mask, 0)
    real = frame_mask(mask, hop)
    silence = samples.new_zeros(len(samples), max(half, half + 1 - samples.shape[1], size))
    samples = torch.cat([samples, silence], dim=1)
    samples = torch.cat([samples[:, 1 : half + 1].flip(1), samples], dim=1)
    spectrum = torch.stft(samples, size, hop, window=window, center=False, return_complex=True)
    spectrum = spectrum[..., : real.shape[1]]
    energy = spectrum.real.square() + spectrum.imag.square()  # (B, F, S)
    levels = (energy.transpose(1, 2) @ filters).clamp(min=QUIETEST).log10()
    loudest = levels.amax(2).masked_fill(~real, -math.inf).amax(1)[:, None, None]
    levels = levels.maximum(loudest - dynamic_range)
    if relative:
        levels = (levels - loudest) * 2 / dynamic_range + 2
    else:
        levels = (levels + 4) / 4
    return levels.masked_fill(~real[..., None], 0), real


def per_band_normalisation(
    features: Float[Tensor, "B S M"], mask: Bool[Tensor, "B S"]
) -> Float[Tensor, "B S M"]:
    """Normalises each band of each clip to mean 0 and standard deviation 1/2 (less for a band that
    hardly changes), which removes the constant effect of a microphone or a room (CMVN)."""
    real = mask[..., None].to(features.dtype)
    count = real.sum(1, keepdim=True)
    centred = (features - (features * real).sum(1, keepdim=True) / count) * real
    return centred / (2 * (centred.square().sum(1, keepdim=True) / count + 0.01).sqrt())


def time_stretch(
    features: Float[Tensor, "B S M"], mask: Bool[Tensor, "B S"], factor: Float[Tensor, " B"]
) -> tuple[Float[Tensor, "B S2 M"], Bool[Tensor, "B S2"]]:
    """Clips stretched to `factor` times their length at the same pitch, by linear interpolation of
    frames."""
    last = (mask.sum(1) - 1)[:, None]
    lengths = (mask.sum(1) * factor).round().long().clamp(min=1)
    real = from_lengths(lengths)
    place = (torch.arange(real.shape[1], device=mask.device) / factor[:, None]).minimum(
        last.to(factor.dtype)
    )
    low = place.long()
    near, far = (
        features.gather(1, index[..., None].expand(-1, -1, features.shape[2]))
        for index in (low, (low + 1).minimum(last))
    )
    between = (place - low)[..., None].to(features.dtype)
    return torch.lerp(near, far, between).masked_fill(~real[..., None], 0), real


def spec_augment(
    features: Float[Tensor, "B S M"],
    mask: Bool[Tensor, "B S"],
    *,
    axis: int,
    count: int,
    widest: float,
) -> Float[Tensor, "B S M"]:
    """SpecAugment (Park et al. 2019): sets `count` random intervals of each clip, in time (axis 1)
    or frequency (axis 2), to the clip's mean. The width of each is drawn uniformly, up to the share
    `widest` of the clip's length or of the mels."""
    rows = len(features)
    sizes = mask.sum(1) if axis == 1 else torch.full((rows,), features.shape[2], device=mask.device)
    draws = torch.rand(2, rows, count, device=mask.device, dtype=features.dtype)
    width = draws[0] * widest * sizes[:, None]
    start = draws[1] * (sizes[:, None] - width)
    place = torch.arange(features.shape[axis], device=mask.device)
    end = (start + width).floor()
    hidden = ((place >= start[..., None]) & (place < end[..., None])).any(1)  # (B, S) or (B, M)
    hidden = hidden[..., None] if axis == 1 else hidden[:, None]
    mean = features.sum((1, 2)) / (mask.sum(1) * features.shape[2]).clamp(min=1)
    return torch.where(hidden & mask[..., None], mean[:, None, None], features)
