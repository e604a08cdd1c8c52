"""The same Transformer in CTranslate2, behind FastAPI, in batches of what is waiting.

    python -m bench.serve_peers.ctranslate RUN --rows 64 --wait 0.01
    python -m bench.serve_peers.ctranslate RUN --check PROMPTS.json

CTranslate2 batches the inputs of one call (sorted by length, in parts of `max_batch_size`), but a
request cannot join a running batch. So the web layer collects what is waiting, as `static` does,
and CTranslate2's callback streams the tokens of each step. The weights are in float32, as ours are.

`--check` compares the tokens of greedy search with ours instead of serving.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import ctranslate2
import numpy as np
import torch
from ctranslate2.specs import TransformerSpec, common_spec

from bench.serve_peers.web import Answer, End, Piece, Pieces, arguments, create_app, serve
from regard.bundle import Bundle, load
from regard.decoders import TransformerDecoder
from regard.encoders import TransformerEncoder
from regard.frontends import Tokens
from regard.layers.blocks import FeedForward
from regard.layers.positions import Sinusoidal, sinusoidal
from regard.serve.engine_process import TextOfTokens
from regard.tokenizers import END, PAD, START, UNKNOWN

POSITIONS = 1024  # rows of the table of sinusoidal positions


# --- from our weights to its own ---


def convert(bundle: Bundle, folder: Path) -> None:
    """Write a softmax Transformer with sinusoidal positions as a model of CTranslate2. Its tokens
    are our token ids, written as text."""
    frontend, encoder, decoder = (
        bundle.model.frontend,
        bundle.model.encoder,
        bundle.model.decoder,
    )
    assert isinstance(frontend, Tokens)
    assert isinstance(encoder, TransformerEncoder) and isinstance(decoder, TransformerDecoder)
    recipe: Any = bundle.recipe
    for part in (recipe.encoder, recipe.decoder):
        if part.positions != "sinusoidal" or part.kernel != "softmax" or not part.key_bias:
            raise SystemExit(
                "only softmax attention, sinusoidal positions and biases are converted"
            )
    assert isinstance(encoder.positions, Sinusoidal)
    gelu = recipe.encoder.activation == "gelu"
    activation = common_spec.Activation.GELU if gelu else common_spec.Activation.RELU
    spec = TransformerSpec.from_config(
        (len(encoder.blocks), len(decoder.blocks)),
        recipe.encoder.heads,
        pre_norm=recipe.encoder.norm == "pre",
        activation=activation,
    )
    _set_embedding(spec.encoder.embeddings[0], spec.encoder, frontend.embedding)
    _set_embedding(spec.decoder.embeddings, spec.decoder, decoder.embedding)
    for part, side in ((spec.encoder, encoder), (spec.decoder, decoder)):
        if recipe.encoder.norm == "pre":
            _set_norm(part.layer_norm, side.final_norm)
    for layer, block in zip(spec.encoder.layer, encoder.blocks, strict=True):
        _set_self_attention(layer.self_attention, block)
        _set_feed_forward(layer.ffn, block.feed_forward, block.feed_forward_residual.norm)
    for layer, block in zip(spec.decoder.layer, decoder.blocks, strict=True):
        _set_self_attention(layer.self_attention, block)
        cross = block.cross_attention
        _set_linear(layer.attention.linear[0], cross.query)
        _set_linear(layer.attention.linear[1], cross.kv)
        _set_linear(layer.attention.linear[2], cross.out)
        _set_norm(layer.attention.layer_norm, block.cross_attention_residual.norm)
        _set_feed_forward(layer.ffn, block.feed_forward, block.feed_forward_residual.norm)
    _set_linear(spec.decoder.projection, decoder.output)
    _register_tokens(spec, decoder.vocabulary)
    spec.validate()
    spec.optimize(quantization="float32")
    spec.save(str(folder))


def _array(tensor: torch.Tensor) -> np.ndarray:
    return tensor.detach().float().cpu().contiguous().numpy().copy()


def _set_linear(spec: Any, linear: Any) -> None:
    spec.weight = _array(linear.weight)
    spec.bias = _array(linear.bias)


def _set_norm(spec: Any, norm: Any) -> None:
    spec.gamma = _array(norm.weight)
    spec.beta = _array(norm.bias)


def _set_embedding(spec: Any, side: Any, embedding: Any) -> None:
    spec.weight = _array(embedding.weight)
    side.scale_embeddings = True  # sqrt(D), as ours
    width = spec.weight.shape[1]
    side.position_encodings.encodings = _array(sinusoidal(torch.arange(POSITIONS), width))


def _set_self_attention(spec: Any, block: Any) -> None:
    _set_linear(spec.linear[0], block.self_attention.qkv)
    _set_linear(spec.linear[1], block.self_attention.out)
    _set_norm(spec.layer_norm, block.self_attention_residual.norm)


def _set_feed_forward(spec: Any, layer: FeedForward, norm: Any) -> None:
    _set_linear(spec.linear_0, layer.up)
    _set_linear(spec.linear_1, layer.down)
    _set_norm(spec.layer_norm, norm)


def _register_tokens(spec: Any, vocabulary: int) -> None:
    names = [str(token) for token in range(vocabulary)]
    spec.register_source_vocabulary(names)
    spec.register_target_vocabulary(names)
    spec.config.unk_token = str(UNKNOWN)
    spec.config.bos_token = str(START)
    spec.config.eos_token = str(END)
    spec.config.decoder_start_token = str(START)
    spec.config.add_source_bos = False
    spec.config.add_source_eos = True


# --- answers ---


class Translator:
    """Greedy search in batches."""

    def __init__(self, bundle: Bundle, folder: Path, *, threads: int, rows: int):
        self.bundle = bundle
        self.rows = rows
        self._translator = ctranslate2.Translator(
            str(folder), device="cpu", intra_threads=threads, compute_type="float32"
        )

    def answer(
        self, prompts: list[str], max_tokens: int, callback: Any = None
    ) -> list[tuple[list[int], str]]:
        """The tokens of each answer, and why it ended."""
        rows = [self.bundle.task.read_one(prompt) for prompt in prompts]
        # Its limit counts the end token, as ours does.
        results = self._translator.translate_batch(
            [[str(token) for token in row] for row in rows],
            max_batch_size=self.rows,
            beam_size=1,
            max_decoding_length=max_tokens,
            suppress_sequences=[[str(PAD)], [str(START)]],
            disable_unk=True,
            return_end_token=True,
            callback=callback,
        )
        return [self._ended(result.hypotheses[0]) for result in results]

    def _ended(self, names: list[str]) -> tuple[list[int], str]:
        tokens = [int(name) for name in names]
        if tokens and tokens[-1] == END:
            return tokens[:-1], "stop"
        return tokens, "length"


class Batches:
    """Collects what is waiting, and hands out the tokens."""

    def __init__(self, translator: Translator, *, rows: int, wait: float):
        self._translator = translator
        self._rows = rows
        self._wait = wait
        self._waiting: asyncio.Queue[tuple[str, int, asyncio.Queue[Piece | End]]] = asyncio.Queue()

    async def answer(self, prompt: str, max_tokens: int) -> Pieces:
        pieces: asyncio.Queue[Piece | End] = asyncio.Queue()
        self._waiting.put_nowait((prompt, max_tokens, pieces))
        while True:
            piece = await pieces.get()
            yield piece
            if isinstance(piece, End):
                return

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            batch = [await self._waiting.get()]
            deadline = loop.time() + self._wait
            while len(batch) < self._rows:
                try:
                    left = max(0.0, deadline - loop.time())
                    batch.append(await asyncio.wait_for(self._waiting.get(), left))
                except TimeoutError:
                    break
            await self._answer_batch(batch)

    async def _answer_batch(self, batch: list[tuple[str, int, asyncio.Queue[Piece | End]]]) -> None:
        loop = asyncio.get_running_loop()
        tokenizer = self._translator.bundle.task.answer_tokenizer
        texts = [TextOfTokens(tokenizer) for _ in batch]

        def on_token(step: Any) -> bool:
            if step.token_id != END:
                piece = Piece(texts[step.batch_id].add(step.token_id))
                loop.call_soon_threadsafe(batch[step.batch_id][2].put_nowait, piece)
            return False

        prompts = [prompt for prompt, _, _ in batch]
        # One limit for all of a call; the benchmark's requests have the same.
        most = max(max_tokens for _, max_tokens, _ in batch)
        answers = await asyncio.to_thread(self._translator.answer, prompts, most, on_token)
        for (_, _, pieces), (tokens, reason) in zip(batch, answers, strict=True):
            pieces.put_nowait(End(len(tokens), reason))


def agreement(translator: Translator, prompts: list[str], max_tokens: int) -> float:
    """The share of prompts whose answer has the same tokens as ours."""
    bundle = translator.bundle
    options = bundle.search_options(greedy=True).replaced(max_new_tokens=max_tokens)
    ours = [list(answer.tokens) for answer in bundle.ask(prompts, options)]
    theirs = [tokens for tokens, _ in translator.answer(prompts, max_tokens)]
    return sum(a == b for a, b in zip(ours, theirs, strict=True)) / len(prompts)


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--check", type=Path, help="a file with a JSON array of prompts")
    parser.add_argument("--max-tokens", type=int, default=48)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    bundle = load(args.run)
    with tempfile.TemporaryDirectory() as folder:
        convert(bundle, Path(folder))
        translator = Translator(bundle, Path(folder), threads=args.threads, rows=args.rows)
        if args.check is not None:
            prompts = json.loads(args.check.read_text("utf-8"))
            print(json.dumps({"agreement": agreement(translator, prompts, args.max_tokens)}))
            return
        batches = Batches(translator, rows=args.rows, wait=args.wait)
        answer: Answer = batches.answer
        app = create_app(answer)

        @asynccontextmanager
        async def lifespan(_: object):
            task = asyncio.create_task(batches.run())
            yield
            task.cancel()

        app.router.lifespan_context = lifespan
        serve(app)


if __name__ == "__main__":
    main()
