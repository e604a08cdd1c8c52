"""The sides of `bench.serve`, each a program of its own, and the clients that load them.

    ours            `regard serve`, with a queue that holds every client
    plain           the same model behind a FastAPI handler, one request at a time
    static          the same model in static batches of what is waiting
    ctranslate      the same Transformer in CTranslate2, in batches of what is waiting
    engine_alone    the engine of `regard serve` without processes and HTTP
    clients         many streaming clients in one process

All servers answer POST /v1/chat/completions with the same chunks, made by the same code.
"""
