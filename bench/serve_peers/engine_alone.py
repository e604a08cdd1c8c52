"""The engine of `regard serve` in one process: no web process, no HTTP, no JSON.

    python -m bench.serve_peers.engine_alone RUN --clients 64 < prompts.json

Every client has one request under way, as those of `bench.serve_peers.clients`: when it ends, the
next one is submitted. Prints tokens and seconds as JSON.
"""

from __future__ import annotations

import json
import sys
import time

import torch

from bench.serve_peers.web import arguments
from regard.bundle import load
from regard.search import Outputs
from regard.serve.engine_process import TextOfTokens


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--clients", type=int, required=True)
    parser.add_argument("--max-tokens", type=int, required=True)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    bundle = load(args.run)
    task = bundle.task
    engine = bundle.engine(max_rows=args.rows)
    options = bundle.search_options(greedy=True).replaced(max_new_tokens=args.max_tokens)
    outputs = Outputs(weights=False, scores=False, stream=True)
    prompts: list[str] = json.load(sys.stdin)

    def begin(prompt: str):
        raw, mask = task.sources([task.read_one(prompt)])
        request = engine.submit(raw, mask, options, outputs=outputs)
        return request, TextOfTokens(task.answer_tokenizer)

    def run(texts: list[str]) -> tuple[int, float]:
        waiting = list(reversed(texts))
        start = time.perf_counter()
        active = [begin(waiting.pop()) for _ in range(min(args.clients, len(waiting)))]
        tokens = 0
        while active:
            engine.step()
            going_on = []
            for request, text in active:
                for token in request.tokens():
                    text.add(token.token)
                if not request.done:
                    going_on.append((request, text))
                    continue
                tokens += len(request.result()[0].tokens)
                if waiting:
                    going_on.append(begin(waiting.pop()))
            active = going_on
        return tokens, time.perf_counter() - start

    run(prompts[: 2 * args.clients])
    tokens, seconds = run(prompts)
    print(json.dumps({"tokens": tokens, "seconds": seconds}))


if __name__ == "__main__":
    main()
