"""The same model behind a FastAPI handler, one request at a time.

python -m bench.serve_peers.plain RUN
"""

from __future__ import annotations

import asyncio

import torch
from starlette.concurrency import iterate_in_threadpool

from bench.serve_peers.web import Answer, End, Piece, Pieces, arguments, create_app, serve
from regard.bundle import Bundle, load
from regard.search import Outputs
from regard.serve.engine_process import TextOfTokens


def answer_with(bundle: Bundle) -> Answer:
    """Streams an answer; the next request waits until it has ended."""
    lock = asyncio.Lock()
    task = bundle.task
    greedy = bundle.search_options(greedy=True)
    outputs = Outputs(weights=False, scores=False, stream=True)

    async def answer(prompt: str, max_tokens: int) -> Pieces:
        async with lock:
            engine = bundle.engine(max_rows=1)
            raw, mask = task.sources([task.read_one(prompt)])
            options = greedy.replaced(max_new_tokens=max_tokens)
            request = engine.submit(raw, mask, options, outputs=outputs)
            text = TextOfTokens(task.answer_tokenizer)
            async for token in iterate_in_threadpool(engine.stream(request)):
                yield Piece(text.add(token.token))
            best = request.result()[0]
            yield End(len(best.tokens), best.finish)

    return answer


def main() -> None:
    args = arguments(__doc__).parse_args()
    torch.set_num_threads(args.threads)
    serve(create_app(answer_with(load(args.run))))


if __name__ == "__main__":
    main()
