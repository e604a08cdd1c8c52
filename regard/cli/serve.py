"""regard serve: models behind HTTP, with a page and an API."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Annotated

import typer

from regard.cli.devices import Device
from regard.cli.paths import filled_path
from regard.errors import InputError, printable


def serve(
    runs: Annotated[
        list[Path],
        typer.Argument(parser=filled_path, metavar="RUN…", help="The folders of trained models."),
    ],
    host: Annotated[
        str, typer.Option(help="The address to listen on. One that others reach needs a key.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any free port.")] = 8000,
    key_file: Annotated[
        Path | None,
        typer.Option(
            parser=filled_path,
            metavar="FILE",
            help="A file with the key that clients must send. Default: the variable REGARD_KEY.",
        ),
    ] = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Listen on any address without a key.")
    ] = False,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME", help="Also accept requests to this host name; may be repeated."
        ),
    ] = None,
    workers: Annotated[int, typer.Option(min=1, max=256, help="Engine processes of each run.")] = 1,
    device: Device = "auto",
) -> None:
    """Serve models: a page to talk to them and look inside, and an API that OpenAI's clients speak.

    \b
    regard serve runs/demo
    regard serve runs/demo runs/demo-translation --port 9000
    regard serve runs/demo --host 0.0.0.0 --key-file key.txt
    """
    try:
        import fastapi  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError:
        raise InputError(
            "regard serve needs FastAPI and uvicorn",
            hint="pip install 'regard[serve]'",
        ) from None
    import asyncio

    from regard.serve.safety import choose_key
    from regard.serve.server import Settings, model_names
    from regard.serve.server import serve as run_server

    key = choose_key(key_file, os.environ)
    os.environ.pop("REGARD_KEY", None)  # processes that this one starts do not need it
    settings = Settings(
        runs=model_names(runs),
        host=host,
        port=port,
        key=key,
        insecure=insecure,
        hosts=tuple(allow_host or ()),
        workers=workers,
        device=device,
    )

    def on_ready(actual_port: int) -> None:
        names = ", ".join(settings.runs)
        shown_host = f"[{host}]" if ":" in host else host
        print(f"Serving {printable(names)}", flush=True)
        print(f"  page  http://{shown_host}:{actual_port}/", flush=True)
        print(f"  API   http://{shown_host}:{actual_port}/v1", flush=True)
        print("Ctrl-C stops it.", flush=True)

    # asyncio cancels what is under way on Ctrl-C, but only in place of Python's own handler.
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    asyncio.run(run_server(settings, on_ready=on_ready))
