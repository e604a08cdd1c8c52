"""The same model in static batches of what is waiting.

    python -m bench.serve_peers.static RUN --rows 64 --wait 0.01
    python -m bench.serve_peers.static RUN --rows 64 --wait 0.01 --drop

This is the dynamic batching of LitServe and of Ray's `@serve.batch`: wait until a batch is full or
a time is over, answer all of it, then take the next batch. The model has a process of its own, and
answers are streamed token by token.

The loop over the batch is the one that is usually written, as in `generate` of transformers: every
row is computed until the longest answer has ended. With `--drop`, rows that have ended are no
longer computed: the strongest form that we know. It uses our own search, so only the joining of
running batches is missing.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from bench.serve_peers.web import Answer, End, Piece, Pieces, arguments, create_app, serve

Item = tuple[int, str, int]  # number, prompt, the most tokens
News = list[tuple[int, Piece | End]]  # of requests, by number


def collect(waiting: Any, rows: int, wait: float) -> list[Item]:
    """The next batch: of at most so many rows, and not later than `wait` after the first."""
    batch = [waiting.get()]
    deadline = time.monotonic() + wait
    while len(batch) < rows:
        try:
            batch.append(waiting.get(timeout=max(0.0, deadline - time.monotonic())))
        except Exception:  # queue.Empty; the same of multiprocessing
            break
    return batch


def work(
    run: Path, threads: int, rows: int, wait: float, drop: bool, waiting: Any, updates: Any
) -> None:
    """The process of the model."""
    import torch

    from regard.bundle import load

    threading.Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(threads)
    bundle = load(run)
    steps_of = dropping_steps if drop else plain_steps
    updates.put("ready")
    while True:
        for news in steps_of(bundle, collect(waiting, rows, wait)):
            if news:
                updates.put(news)


def plain_steps(bundle: Any, batch: Sequence[Item]) -> Iterator[News]:
    """Greedy search of a batch, all rows until the longest answer has ended."""
    import torch

    from regard.search.processors import banned
    from regard.serve.engine_process import TextOfTokens

    task, decoder = bundle.task, bundle.model.decoder
    special_tokens = task.special_tokens
    texts = [TextOfTokens(task.answer_tokenizer) for _ in batch]
    lengths = [0] * len(batch)
    running = set(range(len(batch)))
    with torch.inference_mode():
        raw, mask = task.sources([task.read_one(prompt) for _, prompt, _ in batch])
        state = decoder.start(bundle.model.encode(raw, mask))
        token = torch.full((len(batch),), special_tokens.start)
        bias = None
        while running:
            step = decoder.step(token, state)
            state = step.state
            if bias is None:
                bias = banned(special_tokens.never, step.logits)
            token = (step.logits if bias is None else step.logits + bias).argmax(-1)
            news: News = []
            for row, chosen in enumerate(token.tolist()):
                if row not in running:
                    continue
                number, _, max_tokens = batch[row]
                ended = chosen == special_tokens.end
                if not ended:
                    lengths[row] += 1
                    news.append((number, Piece(texts[row].add(chosen))))
                if ended or lengths[row] == max_tokens:
                    news.append((number, End(lengths[row], "stop" if ended else "length")))
                    running.remove(row)
            yield news


def dropping_steps(bundle: Any, batch: Sequence[Item]) -> Iterator[News]:
    """Greedy search of a batch by our engine, which drops rows that have ended."""
    from regard.search import Outputs
    from regard.serve.engine_process import TextOfTokens

    task = bundle.task
    greedy = bundle.search_options(greedy=True)
    outputs = Outputs(weights=False, scores=False, stream=True)
    engine = bundle.engine(max_rows=len(batch))
    engine.max_joining = len(batch)
    active = []
    for number, prompt, max_tokens in batch:
        raw, mask = task.sources([task.read_one(prompt)])
        options = greedy.replaced(max_new_tokens=max_tokens)
        request = engine.submit(raw, mask, options, outputs=outputs)
        active.append((number, request, TextOfTokens(task.answer_tokenizer)))
    while active:
        engine.step()
        news: News = []
        for number, request, text in active:
            news += [(number, Piece(text.add(token.token))) for token in request.tokens()]
            if request.done:
                best = request.result()[0]
                news.append((number, End(len(best.tokens), best.finish)))
        active = [one for one in active if not one[1].done]
        yield news


def _end_with_parent() -> None:
    """A web process that a signal ends does not end its children."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(0)


class Batches:
    """The web process's side: sends prompts, and hands out what comes back."""

    def __init__(self, waiting: Any, updates: Any):
        self._waiting = waiting
        self._updates = updates
        self._queues: dict[int, asyncio.Queue[Piece | End]] = {}
        self._count = 0

    def start(self) -> None:
        loop = asyncio.get_running_loop()

        def read() -> None:
            while True:
                loop.call_soon_threadsafe(self._deliver, self._updates.get())

        threading.Thread(target=read, daemon=True).start()

    def _deliver(self, news: News) -> None:
        for number, piece in news:
            self._queues[number].put_nowait(piece)

    async def answer(self, prompt: str, max_tokens: int) -> Pieces:
        self._count += 1
        number = self._count
        queue = self._queues[number] = asyncio.Queue()
        self._waiting.put((number, prompt, max_tokens))
        while True:
            piece = await queue.get()
            yield piece
            if isinstance(piece, End):
                del self._queues[number]
                return


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--drop", action="store_true", help="compute no row that has ended")
    args = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    waiting, updates = context.Queue(), context.SimpleQueue()
    settings = (args.run, args.threads, args.rows, args.wait, args.drop, waiting, updates)
    context.Process(target=work, args=settings, daemon=True).start()
    assert updates.get() == "ready"
    batches = Batches(waiting, updates)
    answer: Answer = batches.answer
    app = create_app(answer)

    @asynccontextmanager
    async def lifespan(_: object):
        batches.start()
        yield

    app.router.lifespan_context = lifespan
    serve(app)


if __name__ == "__main__":
    main()
