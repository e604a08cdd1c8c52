"""Clients that people have already, against a real server: openai, langchain-openai, curl."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("openai", reason="needs the official client (extra dev)")
pytest.importorskip("fastapi", reason="needs FastAPI (extra serve)")

import httpx  # noqa: E402
import openai  # noqa: E402

from regard.serve.limits import DEFAULT_LIMITS  # noqa: E402
from tests.serving import Server, train_chat  # noqa: E402
from tests.tiny import PAIRS  # noqa: E402

pytestmark = pytest.mark.timeout(600)  # with the training, on a busy machine
KEY = "a-key-of-more-than-16-characters"
PATIENCE = 120.0  # seconds; nothing should come near it
PROMPT, REPLY = PAIRS[2]  # "How are you?", "I am doing well, thanks."
QUESTION: list[Any] = [{"role": "user", "content": PROMPT}]
GREEDY: dict[str, Any] = {"model": "run", "messages": QUESTION, "temperature": 0}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server in a process of its own; at the end it stops when it is told to."""
    run = train_chat(tmp_path_factory.mktemp("clients"), "run")
    with Server([run], environment={"REGARD_KEY": KEY}) as server:
        yield server
        assert server.stop() == 0


@pytest.fixture(scope="module")
def address(server: Server) -> str:
    """Of its API."""
    return f"{server.url}/v1"


@pytest.fixture(scope="module")
def client(address: str) -> Iterator[Any]:
    with openai.OpenAI(base_url=address, api_key=KEY, max_retries=0, timeout=PATIENCE) as client:
        yield client


# --- the official client ---


def test_models_are_listed(client: Any):
    assert [model.id for model in client.models.list()] == ["run"]
    assert client.models.retrieve("run").owned_by == "regard"


def test_a_reply(client: Any):
    completion = client.chat.completions.create(**GREEDY)
    choice = completion.choices[0]
    assert (choice.message.role, choice.message.content) == ("assistant", REPLY)
    assert (completion.model, choice.finish_reason) == ("run", "stop")
    assert completion.usage is not None
    read, written = completion.usage.prompt_tokens, completion.usage.completion_tokens
    assert read > 0 and written > 0 and completion.usage.total_tokens == read + written


def test_a_stream_has_the_same_text_and_a_chunk_with_the_usage(client: Any):
    stream = client.chat.completions.create(
        **GREEDY, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    last = chunks.pop()
    assert last.choices == []
    whole = client.chat.completions.create(**GREEDY)
    assert last.usage == whole.usage

    assert {chunk.id for chunk in chunks} == {last.id}
    assert all(chunk.usage is None for chunk in chunks)
    deltas = [chunk.choices[0].delta for chunk in chunks]
    assert [delta.role for delta in deltas] == ["assistant"] + [None] * (len(deltas) - 1)
    assert "".join(delta.content or "" for delta in deltas) == REPLY
    assert len(deltas) > 4, "the text comes piece by piece"
    reasons = [chunk.choices[0].finish_reason for chunk in chunks]
    assert reasons == [None] * (len(reasons) - 1) + ["stop"]
    assert deltas[-1].content is None


def test_a_reply_that_is_too_long_says_so(client: Any):
    for name in ("max_tokens", "max_completion_tokens"):
        completion = client.chat.completions.create(**GREEDY, **{name: 2})
        choice = completion.choices[0]
        assert choice.finish_reason == "length"
        assert choice.message.content and REPLY.startswith(choice.message.content)
        assert completion.usage.completion_tokens == 2


def test_several_choices(client: Any):
    completion = client.chat.completions.create(**GREEDY | {"temperature": 1.5}, n=3, seed=7)
    assert [choice.index for choice in completion.choices] == [0, 1, 2]
    texts: dict[int, str] = {0: "", 1: "", 2: ""}
    ended = []
    for chunk in client.chat.completions.create(
        **GREEDY | {"temperature": 1.5}, n=3, seed=7, stream=True
    ):
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
            ended += [choice.index] if choice.finish_reason else []
    assert sorted(ended) == [0, 1, 2]
    assert [choice.message.content for choice in completion.choices] == list(texts.values())


def test_a_seed_decides_the_draw(client: Any):
    def draw(seed: int) -> str | None:
        completion = client.chat.completions.create(**GREEDY | {"temperature": 2.0}, seed=seed)
        return completion.choices[0].message.content

    assert draw(11) == draw(11)
    assert len({draw(seed) for seed in range(8)}) > 1


def test_a_seed_among_our_options_decides_too(client: Any):
    def draw(**fields: Any) -> str | None:
        completion = client.chat.completions.create(**GREEDY | {"temperature": 2.0} | fields)
        return completion.choices[0].message.content

    ours = [draw(extra_body={"regard": {"seed": seed}}) for seed in range(8)]
    assert ours == [draw(seed=seed) for seed in range(8)]
    both = draw(seed=3, extra_body={"regard": {"seed": 5}})
    assert both == ours[3], "the field of the API comes first"
    with pytest.raises(openai.BadRequestError) as error:
        draw(extra_body={"regard": {"seed": "seven"}})
    assert error.value.param == "seed"


def test_a_stop_string_is_not_in_the_text(client: Any):
    before = REPLY.partition("well")[0]
    choice = client.chat.completions.create(**GREEDY, stop=["well"]).choices[0]
    assert (choice.message.content, choice.finish_reason) == (before, "stop")
    chunks = list(client.chat.completions.create(**GREEDY, stop="well", stream=True))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == before
    assert chunks[-1].choices[0].finish_reason == "stop"


def test_logprobs(client: Any):
    completion = client.chat.completions.create(**GREEDY, logprobs=True, top_logprobs=3)
    logprobs = completion.choices[0].logprobs
    assert logprobs is not None and logprobs.content
    assert "".join(token.token for token in logprobs.content) == REPLY
    for token in logprobs.content:
        assert token.logprob <= 0 and len(token.top_logprobs) == 3
        assert token.top_logprobs[0].logprob == pytest.approx(token.logprob, abs=1e-5)

    streamed = []
    for chunk in client.chat.completions.create(
        **GREEDY, logprobs=True, top_logprobs=3, stream=True
    ):
        content = chunk.choices[0].logprobs
        streamed += (content.content or []) if content is not None else []
    assert [token.token for token in streamed] == [token.token for token in logprobs.content]


@pytest.mark.parametrize("stop", [" well", "ing w", "thanks.", REPLY[:2], "never"])
def test_logprobs_up_to_a_stop_string_are_of_the_tokens_before_it(client: Any, stop: str):
    before = REPLY.partition(stop)[0]
    asked = GREEDY | {"logprobs": True, "top_logprobs": 2, "stop": stop}
    free = client.chat.completions.create(**GREEDY, logprobs=True).choices[0].logprobs
    completion = client.chat.completions.create(**asked)
    choice = completion.choices[0]
    assert choice.message.content == before and choice.logprobs is not None
    entries = choice.logprobs.content
    assert completion.usage.completion_tokens == len(entries)
    assert "".join(entry.token for entry in entries) == before
    # The tokens are those that come without a stop string. The last one ends where the stop begins.
    own = [entry.token for entry in free.content[: len(entries)]]
    assert [entry.token for entry in entries[:-1]] == own[:-1]
    for text, entry in zip(own, entries, strict=True):
        assert text.startswith(entry.token) and entry.token
    assert [entry.logprob for entry in entries] == pytest.approx(
        [entry.logprob for entry in free.content[: len(entries)]], abs=1e-5
    )
    assert all(len(entry.top_logprobs) == 2 for entry in entries)

    streamed = []
    text = ""
    for chunk in client.chat.completions.create(**asked, stream=True):
        text += chunk.choices[0].delta.content or ""
        logprobs = chunk.choices[0].logprobs
        streamed += (logprobs.content or []) if logprobs is not None else []
    assert text == before
    assert [(entry.token, entry.logprob) for entry in streamed] == [
        (entry.token, entry.logprob) for entry in entries
    ]

    plain = client.completions.create(
        model="run", prompt=PROMPT, temperature=0, logprobs=2, stop=stop
    ).choices[0]
    assert plain.text == before == "".join(plain.logprobs.tokens)


def test_a_history_with_a_turn_that_has_no_text(client: Any):
    turn = {"role": "assistant", "content": None, "tool_calls": []}
    messages: list[Any] = [*QUESTION, turn, *QUESTION]
    completion = client.chat.completions.create(**GREEDY | {"messages": messages})
    assert completion.choices[0].message.content == REPLY
    nothing: list[Any] = [{"role": "user", "content": None}]
    with pytest.raises(openai.BadRequestError) as error:
        client.chat.completions.create(**GREEDY | {"messages": nothing})
    assert error.value.param == "messages.0.content"


def test_completions_of_many_prompts(client: Any):
    prompts = [prompt for prompt, _ in PAIRS]
    completion = client.completions.create(model="run", prompt=prompts, temperature=0)
    assert [choice.text for choice in completion.choices] == [reply for _, reply in PAIRS]
    pieces = client.completions.create(model="run", prompt=PROMPT, temperature=0, stream=True)
    assert "".join(chunk.choices[0].text for chunk in pieces) == REPLY


def test_options_of_ours(client: Any):
    completion = client.chat.completions.create(
        model="run", messages=QUESTION, extra_body={"regard": {"num_beams": 4}}
    )
    assert completion.choices[0].message.content == REPLY


def test_a_system_message_is_ignored_and_that_is_said(client: Any):
    messages: list[Any] = [{"role": "system", "content": "Talk like a pirate."}, *QUESTION]
    raw = client.chat.completions.with_raw_response.create(**GREEDY | {"messages": messages})
    assert raw.headers["x-regard-ignored"].startswith("system message")
    assert raw.parse().choices[0].message.content == REPLY


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"temperature": 3}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"n": DEFAULT_LIMITS.n + 1}, "n"),
        ({"max_tokens": DEFAULT_LIMITS.max_tokens + 1}, "max_tokens"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"frequency_penalty": 0.5}, "frequency_penalty"),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
        ({"response_format": {"type": "json_object"}}, "response_format.type"),
        ({"messages": []}, "messages"),
        ({"extra_body": {"temprature": 1}}, "temprature"),
    ],
)
def test_what_is_not_supported_is_a_bad_request(client: Any, change: dict[str, Any], param: str):
    with pytest.raises(openai.BadRequestError) as error:
        client.chat.completions.create(**GREEDY | change)
    assert error.value.param == param
    assert error.value.type == "invalid_request_error"


def test_fields_with_values_that_change_nothing_are_accepted(client: Any):
    completion = client.chat.completions.create(
        **GREEDY,
        frequency_penalty=0.0,
        presence_penalty=0,
        logit_bias={},
        prompt_cache_retention=None,
        response_format={"type": "text"},
        store=False,
        user="ada",
        verbosity="medium",
    )
    assert completion.choices[0].message.content == REPLY


def test_errors_have_the_class_that_a_client_knows(client: Any, address: str):
    with pytest.raises(openai.NotFoundError) as missing:
        client.chat.completions.create(**GREEDY | {"model": "gpt-99"})
    assert missing.value.code == "model_not_found"
    assert "there is run" in missing.value.message

    with (
        openai.OpenAI(base_url=address, api_key="another-key-of-length", max_retries=0) as stranger,
        pytest.raises(openai.AuthenticationError),
    ):
        stranger.models.list()


def crowd(client: Any, *, stream: bool, length: int = DEFAULT_LIMITS.max_tokens) -> Any:
    """As many answers as one request may ask for, each of them forced to be long."""
    long = {"min_new_tokens": length, "max_new_tokens": length, "candidates": 1}
    n = DEFAULT_LIMITS.n
    return client.completions.create(
        model="run",
        prompt=[PROMPT] * (DEFAULT_LIMITS.answers // n),
        n=n,
        temperature=1,
        stream=stream,
        extra_body={"regard": long},
    )


def test_one_request_leaves_room_for_others(client: Any):
    with crowd(client, stream=True, length=100) as answers:  # they take all rows until they end
        next(iter(answers))
        assert client.chat.completions.create(**GREEDY).choices[0].message.content == REPLY


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"prompt": [PROMPT] * DEFAULT_LIMITS.prompts, "n": 2}, "n"),
        ({"prompt": [PROMPT] * 9, "n": DEFAULT_LIMITS.n}, "n"),
        (
            {
                "prompt": [PROMPT] * 32,
                "max_tokens": 512,
                "extra_body": {"regard": {"num_beams": 16}},
            },
            "n",
        ),
        ({"prompt": "x" * (DEFAULT_LIMITS.prompt_characters + 1)}, "prompt"),
    ],
)
def test_more_than_one_request_may_ask_for(client: Any, change: dict[str, Any], param: str):
    with pytest.raises(openai.BadRequestError) as error:
        client.completions.create(model="run", **change)
    assert error.value.param == param


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_more_than_fits_is_refused_with_the_time_to_wait(client: Any, server: Server):
    """Eight requests with as many answers as one may have fill the queue, so the next one finds
    no place. The engine stands still meanwhile, so that none of them ends too soon."""
    limits = DEFAULT_LIMITS
    count, rest = divmod(limits.queue, limits.answers)
    assert count > 1 and rest == 0

    async def jobs(own: httpx.AsyncClient) -> float:
        lines = (await own.get("/metrics")).text.splitlines()
        return sum(float(x.rpartition(" ")[2]) for x in lines if x.startswith("regard_jobs{"))

    async def ask() -> openai.RateLimitError:
        key = {"Authorization": f"Bearer {KEY}"}
        async with (
            httpx.AsyncClient(base_url=server.url, headers=key, trust_env=False) as own,
            openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key=KEY, max_retries=0) as many,
        ):
            tasks = [asyncio.create_task(crowd(many, stream=False)) for _ in range(count)]
            async with asyncio.timeout(PATIENCE):
                while await jobs(own) < limits.queue:
                    await asyncio.sleep(0.02)
            with pytest.raises(openai.RateLimitError) as busy:
                await many.chat.completions.create(**GREEDY)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            return busy.value

    (engine,) = server.engine_pids()
    os.kill(engine, signal.SIGSTOP)
    try:
        error = asyncio.run(ask())
    finally:
        os.kill(engine, signal.SIGCONT)
    assert error.code == "queue_full"
    assert int(error.response.headers["retry-after"]) >= 1
    # The clients are gone, and the places are free again: the official client waits and tries
    # again.
    patient = client.with_options(max_retries=3)
    assert patient.chat.completions.create(**GREEDY).choices[0].message.content == REPLY


# --- others ---


def test_langchain(address: str):
    langchain = pytest.importorskip("langchain_openai", reason="needs langchain-openai (extra dev)")
    chat = langchain.ChatOpenAI(
        model="run", base_url=address, api_key=KEY, temperature=0, max_retries=0
    )
    message = chat.invoke(PROMPT)
    assert message.content == REPLY
    assert message.usage_metadata["output_tokens"] > 0
    chunks = list(chat.stream(PROMPT))
    assert "".join(str(chunk.content) for chunk in chunks) == REPLY
    assert len(chunks) > 4
    answers = chat.batch([prompt for prompt, _ in PAIRS])
    assert [answer.content for answer in answers] == [reply for _, reply in PAIRS]


def curl(*arguments: str) -> str:
    program = shutil.which("curl")
    if program is None:
        pytest.skip("needs curl")
    command = [program, "-sS", "--max-time", str(PATIENCE), "-H", f"Authorization: Bearer {KEY}"]
    return subprocess.run([*command, *arguments], capture_output=True, text=True, check=True).stdout


def test_curl(address: str):
    body = json.dumps(GREEDY)
    answer = json.loads(curl(f"{address}/chat/completions", "--json", body))
    assert answer["choices"][0]["message"]["content"] == REPLY

    lines = curl(
        "-N", f"{address}/chat/completions", "--json", json.dumps(GREEDY | {"stream": True})
    )
    events = [line.removeprefix("data: ") for line in lines.splitlines() if line]
    assert events[-1] == "[DONE]"
    deltas = [json.loads(event)["choices"][0]["delta"] for event in events[:-1]]
    assert "".join(delta.get("content", "") for delta in deltas) == REPLY

    status = curl("-o", "/dev/null", "-w", "%{http_code}", f"{address}/nowhere")
    assert status == "404"


def test_habits_of_open_webui(client: Any, address: str):
    """It lists the models, streams with usage and fields of its own making, and asks the same
    model for a title, tags and follow-up questions with a long instruction."""
    assert json.loads(curl(f"{address}/models"))["data"][0]["id"] == "run"
    chunks = list(
        client.chat.completions.create(
            **GREEDY, stream=True, stream_options={"include_usage": True}, max_tokens=40
        )
    )
    assert chunks[-1].usage is not None
    history = "\n".join(f"USER: {prompt}\nASSISTANT: {reply}" for prompt, reply in PAIRS)
    for wish in ("a concise, 3-5 word title with an emoji", "1-3 broad tags", "3-5 follow-ups"):
        instruction = (
            f"### Task:\nGenerate {wish} for the chat history.\n### Output:\n"
            f'JSON format: {{ "title": "…" }}\n<chat_history>\n{history}\n</chat_history>'
        )
        completion = client.chat.completions.create(
            model="run",
            messages=[{"role": "user", "content": instruction}],
            stream=False,
            max_completion_tokens=300,
        )
        assert completion.choices[0].finish_reason in ("stop", "length")
    assert client.chat.completions.create(**GREEDY).choices[0].message.content == REPLY
