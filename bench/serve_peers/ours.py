"""`regard serve` with a queue that holds every client, so that all sides have the same load.

python -m bench.serve_peers.ours RUN
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

from bench.serve_peers.web import MODEL, arguments
from regard.serve.limits import DEFAULT_LIMITS
from regard.serve.server import Settings, serve


def main() -> None:
    args = arguments(__doc__).parse_args()
    limits = replace(
        DEFAULT_LIMITS,
        rows=args.rows,
        queue=4096,
        tokens_under_way=4_000_000,
        deadline=600.0,
    )
    settings = Settings(runs={MODEL: args.run}, port=0, limits=limits, threads=args.threads)
    asyncio.run(serve(settings, on_ready=lambda port: print(f"port {port}", flush=True)))


if __name__ == "__main__":
    main()
