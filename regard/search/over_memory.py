"""Search over a memory: the engine without its encoder, for one batch of encoded inputs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from regard.errors import InputError
from regard.search.choice import root_seed
from regard.search.engine import DEFAULT_OUTPUTS, Engine
from regard.search.hypotheses import Hypothesis, SpecialTokens
from regard.search.options import Options
from regard.search.requests import Decoder, EncodedInput, Outputs, Request, StreamedToken
from regard.values import Capture, Memory


class _EncodedModel:
    """A model for an engine whose inputs are encoded already, from a decoder alone.

    The only input that an engine then reads is the empty prompt, so `encode` returns its memory.
    """

    def __init__(self, decoder: Decoder, idf: Float[Tensor, " V"] | None, prior: Memory | None):
        self.decoder = decoder
        self.idf = idf
        self.prior = prior

    def encode(self, raw: Tensor, mask: Tensor, *, capture: Capture = "none") -> Memory:
        assert self.prior is not None
        return self.prior


def search(
    decoder: Decoder,
    memory: Memory,
    special_tokens: SpecialTokens,
    options: Options,
    *,
    prior: Memory | None = None,
    idf: Float[Tensor, " V"] | None = None,
    seeds: Sequence[int] | None = None,
    outputs: Outputs = DEFAULT_OUTPUTS,
) -> list[list[Hypothesis]]:
    """For each row of a memory its answers, best first: one, or up to `options.candidates`.

    prior    the memory of an empty prompt, one row; needed for mmi_weight
    idf      the inverse document frequency of each token; needed for idf_weight
    seeds    one per row, for sampling. With `seeds_of` an input gets the same random numbers in any
             batch; by default they depend on `options.seed` and the number of the row
    outputs  what is returned beside the tokens of the answers
    """
    engine, requests = _requests(
        decoder,
        memory,
        special_tokens,
        options,
        prior=prior,
        idf=idf,
        seeds=seeds,
        outputs=outputs,
    )
    engine.run()
    return [request.result() for request in requests]


def stream(
    decoder: Decoder,
    memory: Memory,
    special_tokens: SpecialTokens,
    options: Options,
    *,
    prior: Memory | None = None,
    idf: Float[Tensor, " V"] | None = None,
    seeds: Sequence[int] | None = None,
) -> Iterator[StreamedToken]:
    """The best answer to a memory of one row, token by token. It is the first that `search`
    returns."""
    if memory.mask.shape[0] != 1:
        raise InputError(
            "a stream reads one source at a time",
            where="search",
            got=f"{memory.mask.shape[0]} rows",
        )
    engine, (request,) = _requests(
        decoder,
        memory,
        special_tokens,
        options,
        prior=prior,
        idf=idf,
        seeds=seeds,
        outputs=Outputs(stream=True),
    )
    return engine.stream(request)


def _requests(
    decoder: Decoder,
    memory: Memory,
    special_tokens: SpecialTokens,
    options: Options,
    *,
    prior: Memory | None,
    idf: Float[Tensor, " V"] | None,
    seeds: Sequence[int] | None,
    outputs: Outputs,
) -> tuple[Engine, list[Request]]:
    """An engine with a request for each row of a memory."""
    size = memory.mask.shape[0]
    if options.mmi_weight and prior is not None and prior.mask.shape[0] != 1:
        raise InputError(
            "mmi_weight needs as prior the memory of one empty prompt",
            where="search",
            got=f"{prior.mask.shape[0]} rows",
        )
    if seeds is not None and len(seeds) != size:
        raise InputError(
            f"seeds must be one a row of the memory, {size}", where="search", got=len(seeds)
        )
    if options.do_sample and seeds is None:
        seed = root_seed(options)
        # Multiplied, so that row 1 with seed 0 is not row 0 with seed 1.
        seeds = [(seed * 0x9E3779B1 + row) % 2**32 for row in range(size)]

    empty_prompt = None if prior is None else lambda: (prior.states, prior.mask)
    model = _EncodedModel(decoder, idf, prior)
    # Room for all requests at once, with MMI too.
    rows = max(1, 4 * size * max(options.num_beams, options.candidates))
    engine = Engine(
        model, special_tokens, empty_prompt=empty_prompt, max_rows=rows, max_joining=rows
    )
    requests = []
    for row in range(size):
        source = EncodedInput(memory.rows(torch.tensor([row], device=memory.mask.device)))
        seed = None if not options.do_sample or seeds is None else seeds[row]
        requests.append(engine.submit_input(source, options, seed=seed, outputs=outputs))
    return engine, requests
