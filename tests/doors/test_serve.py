"""The API of `regard serve`, asked over HTTP."""

from __future__ import annotations

import base64
import json
import os
import re
import signal
import subprocess
import sys
import time
import wave
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="needs the extra serve")
pytest.importorskip("httpx")

import httpx
import numpy as np
import torch

import regard
from regard import build
from regard.evaluate import questions
from tests.serving import Server, stream, train_dialogues, train_runs
from tests.tiny import LIKED, PAIRS

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.skipif(sys.platform != "linux", reason="reads /proc"),
]
LONG = {"regard": {"min_new_tokens": 500}, "max_tokens": 512, "temperature": 0}
# An answer that is still under way when a busy machine comes to the next line of a test.
LONGER = {"regard": {"min_new_tokens": 6000}, "max_tokens": 6000, "temperature": 0}
HELLO = {"model": "chat", "messages": [{"role": "user", "content": "Hello!"}]}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return train_runs(tmp_path_factory.mktemp)


@pytest.fixture(scope="module")
def server(runs: dict[str, Path]) -> Iterator[Server]:
    server = Server(list(runs.values()))
    yield server
    assert server.stop() == 0
    assert not [line for line in server.errors if "stopping" not in line]


@pytest.fixture
def client(server: Server) -> Iterator[httpx.Client]:
    with server.client() as client:
        yield client
    assert server.process.poll() is None


def chat(client: httpx.Client, prompt: str, **changes: Any) -> dict[str, Any]:
    body = HELLO | {"messages": [{"role": "user", "content": prompt}]} | changes
    answer = client.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def text_of(answer: dict[str, Any]) -> str:
    return answer["choices"][0]["message"]["content"]


def test_models(client: httpx.Client):
    listed = client.get("/v1/models").json()
    assert listed["object"] == "list"
    assert {model["id"] for model in listed["data"]} == {"chat", "captions", "speech"}
    one = client.get("/v1/models/captions").json()
    assert one["object"] == "model" and one["regard"]["input"] == "picture"
    wrong = client.get("/v1/models/none")
    assert wrong.status_code == 404 and wrong.json()["error"]["code"] == "model_not_found"


def test_answers_are_those_of_ask(client: httpx.Client, runs: dict[str, Path]):
    bot = regard.load(runs["chat"])
    for prompt, reply in PAIRS:
        answer = chat(client, prompt, temperature=0)
        assert text_of(answer) == bot.ask(prompt, greedy=True).text == reply
        assert answer["choices"][0]["finish_reason"] == "stop"
        usage = answer["usage"]
        assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
        assert usage["completion_tokens"] == len(bot.ask(prompt, greedy=True).tokens)


def test_chunks(client: httpx.Client):
    """One id; the role first; the reason in a chunk without content; usage without choices."""
    body = HELLO | {"stream_options": {"include_usage": True}, "temperature": 0}
    chunks = stream(client, "/v1/chat/completions", body)
    assert len({chunk["id"] for chunk in chunks}) == 1
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    *parts, usage = chunks
    assert usage["choices"] == [] and usage["usage"]["completion_tokens"] > 0
    assert all(part["usage"] is None for part in parts)
    deltas = [part["choices"][0]["delta"] for part in parts]
    assert deltas[0] == {"role": "assistant", "content": ""}
    assert deltas[-1] == {} and parts[-1]["choices"][0]["finish_reason"] == "stop"
    assert all(part["choices"][0]["finish_reason"] is None for part in parts[:-1])
    assert "".join(delta.get("content", "") for delta in deltas) == "Hi there."
    without = stream(client, "/v1/chat/completions", HELLO | {"temperature": 0})
    assert all("usage" not in chunk and chunk["choices"] for chunk in without)


def test_length_is_the_reason_when_it_is(client: httpx.Client):
    for limit in ({"max_tokens": 2}, {"max_completion_tokens": 2}):
        answer = chat(client, "Tell me a joke.", temperature=0, **limit)
        assert answer["choices"][0]["finish_reason"] == "length"
        assert answer["usage"]["completion_tokens"] == 2
    last = stream(client, "/v1/chat/completions", HELLO | {"max_tokens": 1})[-1]
    assert last["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize("stop", ["walks", ["zzz", " into a"], "se walks in"])
def test_stop_strings_are_not_in_the_answer(client: httpx.Client, stop: Any, is_stream: bool):
    body = HELLO | {"messages": [{"role": "user", "content": "Tell me a joke."}]}
    body |= {"temperature": 0, "stop": stop}
    if is_stream:
        chunks = stream(client, "/v1/chat/completions", body)
        text = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks)
        reason = chunks[-1]["choices"][0]["finish_reason"]
    else:
        answer = client.post("/v1/chat/completions", json=body).json()
        text = text_of(answer)
        reason = answer["choices"][0]["finish_reason"]
    whole = "A horse walks into a bar."
    found = next(word for word in ([stop] if isinstance(stop, str) else stop) if word in whole)
    assert text == whole.partition(found)[0] and reason == "stop"


def test_several_choices_and_seeds(client: httpx.Client):
    drawn = {"temperature": 2.0, "n": 4, "max_tokens": 12}
    first = chat(client, "Hello!", seed=7, **drawn)
    again = chat(client, "Hello!", seed=7, **drawn)
    other = chat(client, "Hello!", seed=8, **drawn)
    texts = [
        [choice["message"]["content"] for choice in answer["choices"]]
        for answer in (first, again, other)
    ]
    assert texts[0] == texts[1] != texts[2] and len(set(texts[0])) > 1
    assert [choice["index"] for choice in first["choices"]] == [0, 1, 2, 3]
    chunks = stream(client, "/v1/chat/completions", HELLO | drawn | {"seed": 7})
    streamed = ["", "", "", ""]
    for chunk in chunks:
        choice = chunk["choices"][0]
        streamed[choice["index"]] += choice["delta"].get("content", "")
    assert streamed == texts[0]


def test_without_a_seed_draws_differ(client: httpx.Client):
    texts = {text_of(chat(client, "Hello!", temperature=2.0, max_tokens=16)) for _ in range(6)}
    assert len(texts) > 1


def test_logprobs(client: httpx.Client, runs: dict[str, Path]):
    answer = chat(client, "Hello!", temperature=0, logprobs=True, top_logprobs=3)
    content = answer["choices"][0]["logprobs"]["content"]
    own = regard.load(runs["chat"]).ask("Hello!", greedy=True)
    assert [entry["token"] for entry in content] == list(own.pieces)
    assert [entry["logprob"] for entry in content] == pytest.approx(
        own.logprobs[: len(content)], abs=1e-4
    )
    assert all(len(entry["top_logprobs"]) == 3 for entry in content)
    assert all(entry["top_logprobs"][0]["token"] == entry["token"] for entry in content)
    chunks = stream(client, "/v1/chat/completions", HELLO | {"temperature": 0, "logprobs": True})
    entries = [
        entry
        for chunk in chunks
        for entry in (chunk["choices"][0]["logprobs"] or {"content": []})["content"]
    ]
    assert [entry["token"] for entry in entries] == list(own.pieces)


def test_top_logprobs_are_those_of_the_models_own_logits(
    client: httpx.Client, runs: dict[str, Path]
):
    """Those of unlikely tokens too, which 4 digits of a probability would lose."""
    answer = chat(client, "Hello!", temperature=0, logprobs=True, top_logprobs=20)
    content = answer["choices"][0]["logprobs"]["content"]
    bundle = regard.load(runs["chat"])
    own = bundle.ask("Hello!", greedy=True, alternatives=20)
    row = bundle.task.read_one("Hello!")
    raw, mask = bundle.task.sources([row])
    special = bundle.task.special_tokens
    with torch.inference_mode():
        memory = bundle.model.encode(raw, mask)
        tokens = torch.tensor([[special.start, *own.tokens]])
        exact = bundle.model.decoder(tokens, memory)[0].log_softmax(-1)
    lowest = 0.0
    for t, entry in enumerate(content):
        assert own.alternatives is not None
        wanted = [exact[t, other.token].item() for other in own.alternatives[t]]
        got = [other["logprob"] for other in entry["top_logprobs"]]
        assert got == pytest.approx(wanted, abs=1e-4)
        assert got[0] == pytest.approx(entry["logprob"], abs=1e-5)
        lowest = min(lowest, got[-1])
    assert lowest < -7  # of a probability that has one digit, if it has four after the point

    body = {"model": "chat", "prompt": "Hello!", "temperature": 0, "logprobs": 5}
    plain = client.post("/v1/completions", json=body).json()["choices"][0]["logprobs"]
    for likeliest, entry in zip(plain["top_logprobs"], content, strict=True):
        assert list(likeliest.values()) == pytest.approx(
            [other["logprob"] for other in entry["top_logprobs"][:5]], abs=1e-5
        )


def test_completions_of_several_prompts(client: httpx.Client):
    prompts = [prompt for prompt, _ in PAIRS]
    body = {"model": "chat", "prompt": prompts, "temperature": 0, "logprobs": 2}
    answer = client.post("/v1/completions", json=body).json()
    assert answer["object"] == "text_completion"
    assert [choice["text"] for choice in answer["choices"]] == [reply for _, reply in PAIRS]
    first = answer["choices"][0]["logprobs"]
    assert "".join(first["tokens"]) == PAIRS[0][1] and first["text_offset"][0] == 0
    chunks = stream(client, "/v1/completions", body | {"logprobs": None})
    texts = [""] * len(prompts)
    for chunk in chunks:
        texts[chunk["choices"][0]["index"]] += chunk["choices"][0]["text"]
    assert texts == [reply for _, reply in PAIRS]


def test_a_system_message_is_said_to_be_ignored(client: httpx.Client):
    messages = [{"role": "system", "content": "Be rude."}, *HELLO["messages"]]
    answer = client.post("/v1/chat/completions", json=HELLO | {"messages": messages})
    assert "system" in answer.headers["x-regard-ignored"]
    assert "x-regard-ignored" not in client.post("/v1/chat/completions", json=HELLO).headers


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("chat/completions", HELLO | {"model": "none"}, 404),
        ("chat/completions", {"messages": HELLO["messages"]}, 400),  # several models
        ("chat/completions", HELLO | {"messages": [{"role": "user", "content": ""}]}, 400),
        ("chat/completions", HELLO | {"messages": [{"role": "assistant", "content": "x"}]}, 400),
        ("chat/completions", HELLO | {"max_tokens": 10**9}, 400),
        ("chat/completions", HELLO | {"n": 1000}, 400),
        ("chat/completions", HELLO | {"tools": [{}]}, 400),
        ("chat/completions", HELLO | {"top_logprobs": 2}, 400),
        ("chat/completions", HELLO | {"regard": {"num_beams": 10**6}}, 400),
        ("chat/completions", HELLO | {"regard": {"mmi_weight": 0.5, "nonsense": 1}}, 400),
        ("chat/completions", HELLO | {"stop": ["a"] * 9}, 400),
        ("chat/completions", HELLO | {"stop": ""}, 400),
        ("chat/completions", HELLO | {"stream_options": {"include_usage": True}}, 400),
        ("chat/completions", HELLO | {"model": "captions"}, 400),
        ("completions", {"model": "chat", "prompt": ["x"] * 1000}, 400),
        ("completions", {"model": "chat", "prompt": [[1, 2]]}, 400),
        ("completions", {"model": "chat", "prompt": "word " * 5000}, 400),
        ("completions", {"model": "chat", "prompt": "x" * 150_000}, 400),
        ("ask", {"model": "chat", "input": "Hello", "prefix": [10**9]}, 400),
        ("ask", {"model": "chat", "input": "Hello", "prefix": [2]}, 400),
        ("ask", {"model": "chat", "input": "Hello", "alternatives": 1000}, 400),
        ("ask", {"model": "captions", "input": "Hello"}, 400),
        ("ask", {"model": "captions", "input": {"picture": "data:image/png;base64,aGk="}}, 400),
        ("ask", {"model": "captions", "input": {"picture": "http://127.0.0.1/x.png"}}, 400),
        ("ask", {"model": "speech", "input": {"sound": "data:audio/wav;base64,aGk="}}, 400),
    ],
)
@pytest.mark.parametrize("is_stream", [False, True])
def test_bad_requests(
    client: httpx.Client, path: str, body: dict[str, Any], status: int, is_stream: bool
):
    if is_stream and "stream_options" in body:
        pytest.skip("is a good request")
    content = json.dumps(body | {"stream": is_stream})
    answer = client.post(f"/v1/{path}", content=content)
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert error["message"] and "\n" not in error["message"] and error["type"]
    assert len(answer.content) < 4096


def test_unknown_paths_have_the_same_shape(client: httpx.Client):
    for answer in (client.get("/v1/nothing"), client.get("/v1/chat/completions")):
        assert answer.status_code in (404, 405) and answer.json()["error"]["message"]
    wrong = client.get("/v1/budget?width=x")
    assert wrong.status_code == 400 and wrong.json()["error"]["param"] == "width"


# --- what was said before ---


def talk(word: str, *before: str) -> list[dict[str, str]]:
    said = [*before, f"I like {word}.", "Good.", "What do I like?"]
    return [
        {"role": "user" if place % 2 == 0 else "assistant", "content": text}
        for place, text in enumerate(said)
    ]


@pytest.fixture(scope="module")
def talks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """A server with a run that was trained on histories."""
    run = train_dialogues(tmp_path_factory.mktemp("talks"))
    with Server([run]) as server, server.client() as client:
        yield client


def test_a_run_trained_on_histories_reads_the_turns_before(talks: httpx.Client):
    assert talks.get("/v1/models/talks").json()["regard"]["turns"] == 3

    def ask(messages: list[dict[str, str]]) -> tuple[str, int]:
        answer = chat(talks, "", model="talks", messages=messages, temperature=0)
        return text_of(answer), answer["usage"]["prompt_tokens"]

    _, alone = ask(talk("tea")[-1:])
    for word in LIKED:
        text, count = ask(talk(word))
        assert text == f"You like {word}." and count > alone + 4
        body = {"model": "talks", "messages": talk(word), "temperature": 0}
        chunks = stream(talks, "/v1/chat/completions", body)
        deltas = [chunk["choices"][0]["delta"].get("content", "") for chunk in chunks]
        assert "".join(deltas) == text
        asked = {"model": "talks", "input": talk(word), "greedy": True}
        assert talks.post("/v1/ask", json=asked).json()["answer"]["text"] == text
    # More turns than it was trained to read, and a system message, change nothing.
    system = {"role": "system", "content": "Be brief."}
    long = [system, *talk("jazz", "I like bread.", "Good.")]
    assert ask(long) == ask(talk("jazz"))


def test_a_run_trained_on_single_turns_reads_the_last_one(client: httpx.Client):
    assert client.get("/v1/models/chat").json()["regard"]["turns"] <= 1
    (first, _), (last, reply) = PAIRS[2:4]
    history = [
        {"role": "user", "content": first},
        {"role": "assistant", "content": "I am doing well, thanks."},
        {"role": "user", "content": last},
    ]
    whole = chat(client, "", messages=history, temperature=0)
    alone = chat(client, last, temperature=0)
    assert text_of(whole) == text_of(alone) == reply
    assert whole["usage"] == alone["usage"]


# --- ask ---


def test_ask_says_where_it_looked(client: httpx.Client, runs: dict[str, Path]):
    body = {"model": "chat", "input": "Who wrote Faust?", "greedy": True, "attention": True}
    body |= {"alternatives": 3, "effect": True}
    answer = client.post("/v1/ask", json=body).json()["answer"]
    own = regard.load(runs["chat"]).ask("Who wrote Faust?", greedy=True, alternatives=3)
    assert own.weights is not None and own.alternatives is not None
    assert answer["text"] == own.text and answer["place_names"] == list(own.place_names)
    for got, wanted in zip(answer["weights"], own.weights.mean(1).tolist(), strict=True):
        assert got == pytest.approx(wanted, abs=1e-3)
    assert [step[0]["text"] for step in answer["alternatives"]] == [
        step[0].text for step in own.alternatives
    ]
    effects = answer["effects"]
    assert len(effects) == len(own.logprobs) and len(effects[0]) == len(own.place_names)
    assert any(abs(value) > 1e-3 for row in effects for value in row)
    alone = client.post("/v1/ask", json=body | {"attention": False}).json()["answer"]
    assert alone["effects"] == effects and alone["weights"] is None
    events = stream(client, "/v1/ask", body | {"effect": False})
    assert [event["type"] for event in events] == [
        "start", *["token"] * len(own.tokens), "end"
    ]  # fmt: skip
    assert events[0]["place_names"] == list(own.place_names)
    assert "".join(event["text"] for event in events[1:-1]) == own.text
    assert [event["weights"] for event in events[1:-1]] == answer["weights"][: len(own.tokens)]
    assert events[1]["alternatives"] == answer["alternatives"][0]
    assert events[-1]["answer"]["weights"] == answer["weights"]


@pytest.mark.parametrize("is_stream", [False, True])
def test_effects_of_an_answer_that_a_stop_string_ended(client: httpx.Client, is_stream: bool):
    """They are those of the tokens that remain, which a stop string later on does not change."""
    body = {"model": "chat", "input": "Who wrote Faust?", "greedy": True, "effect": True}
    whole = client.post("/v1/ask", json=body | {"attention": True}).json()["answer"]
    stop = whole["pieces"][2].strip()
    asked = body | {"attention": True, "alternatives": 2, "stop": stop}
    if is_stream:
        *_, end = stream(client, "/v1/ask", asked)
        answer = end["answer"]
    else:
        answer = client.post("/v1/ask", json=asked).json()["answer"]
    count = len(answer["tokens"])
    assert 0 < count <= 3 and answer["finish"] == "stop"
    assert answer["tokens"] == whole["tokens"][:count]
    assert "".join(answer["pieces"]) == answer["text"] == whole["text"].partition(stop)[0]
    for name in ("weights", "alternatives", "logprobs", "effects"):
        assert len(answer[name]) == count
    assert answer["weights"] == whole["weights"][:count]
    for got, wanted in zip(answer["effects"], whole["effects"], strict=False):
        assert got == pytest.approx(wanted, abs=2e-4)

    nothing = client.post("/v1/ask", json=asked | {"stop": whole["pieces"][0]}).json()["answer"]
    assert nothing["text"] == "" and nothing["tokens"] == []
    assert nothing["weights"] == nothing["effects"] == nothing["alternatives"] == []


def test_an_answer_goes_on_from_an_alternative(client: httpx.Client):
    body = {"model": "chat", "input": "Hello!", "greedy": True, "alternatives": 4}
    answer = client.post("/v1/ask", json=body).json()["answer"]
    other = answer["alternatives"][1][1]
    prefix = [*answer["tokens"][:1], other["token"]]
    going_on = client.post("/v1/ask", json=body | {"prefix": prefix}).json()["answer"]
    assert going_on["tokens"][:2] == prefix
    assert going_on["text"].startswith(answer["pieces"][0] + other["text"])
    same = client.post("/v1/ask", json=body | {"prefix": answer["tokens"][:2]}).json()["answer"]
    assert same["text"] == answer["text"]


def data_uri(path: Path, kind: str) -> str:
    return f"data:{kind};base64,{base64.b64encode(path.read_bytes()).decode()}"


def test_pictures(client: httpx.Client, runs: dict[str, Path]):
    picture = runs["captions"].parent / "0.png"
    own = regard.load(runs["captions"]).ask(picture, greedy=True)
    uri = data_uri(picture, "image/png")
    body = {"model": "captions", "input": {"picture": uri}, "greedy": True, "attention": True}
    answer = client.post("/v1/ask", json=body).json()["answer"]
    assert answer["text"] == own.text and own.grid is not None
    assert answer["grid"] == list(own.grid)
    assert len(answer["weights"][0]) == own.grid[0] * own.grid[1]
    content = [{"type": "image_url", "image_url": {"url": uri}}]
    messages = [{"role": "user", "content": content}]
    body = {"model": "captions", "messages": messages, "temperature": 0}
    assert text_of(client.post("/v1/chat/completions", json=body).json()) == own.text


@pytest.mark.parametrize("form", ["json", "text", "verbose_json"])
def test_transcriptions(client: httpx.Client, runs: dict[str, Path], form: str):
    sound = runs["speech"].parent / "sounds" / "3.wav"
    own = regard.load(runs["speech"]).ask(sound)
    answer = client.post(
        "/v1/audio/transcriptions",
        files={"file": ("3.wav", sound.read_bytes(), "audio/wav")},
        data={"model": "speech", "response_format": form},
    )
    assert answer.status_code == 200, answer.text
    if form == "text":
        assert answer.text == own.text + "\n"
    else:
        assert answer.json()["text"] == own.text
    if form == "verbose_json":
        assert 0.1 < answer.json()["duration"] < 1
    bad = client.post("/v1/audio/transcriptions", data={"model": "speech"})
    assert bad.status_code == 400 and bad.json()["error"]["param"] == "file"
    files = {"file": ("x.wav", b"RIFF no sound", "audio/wav")}
    bad = client.post("/v1/audio/transcriptions", files=files, data={"model": "speech"})
    assert bad.status_code == 400


@pytest.fixture
def official(server: Server) -> Iterator[Any]:
    openai = pytest.importorskip("openai", reason="needs the official client (extra dev)")
    address = f"{server.url}/v1"
    with openai.OpenAI(base_url=address, api_key="none", max_retries=0, timeout=60) as client:
        yield client


def test_a_verbose_transcript_is_what_the_official_client_expects(
    official: Any, runs: dict[str, Path]
):
    from openai.types.audio import TranscriptionVerbose

    sound = runs["speech"].parent / "sounds" / "3.wav"
    own = regard.load(runs["speech"]).ask(sound, greedy=True)
    with wave.open(str(sound)) as file:
        seconds = file.getnframes() / file.getframerate()
    asked = {"model": "speech", "file": sound, "temperature": 0}
    transcript = official.audio.transcriptions.create(
        **asked, response_format="verbose_json", timestamp_granularities=["segment"], stream=False
    )
    assert isinstance(transcript, TranscriptionVerbose)
    TranscriptionVerbose.model_validate(transcript.to_dict())  # nothing is missing
    assert transcript.text == own.text and own.text
    assert transcript.duration == pytest.approx(seconds, abs=1e-3)
    assert transcript.usage and transcript.usage.seconds == transcript.duration
    assert transcript.segments
    (segment,) = transcript.segments
    assert (segment.id, segment.seek, segment.start, segment.end) == (0, 0, 0, transcript.duration)
    assert segment.text == own.text and segment.tokens == list(own.tokens)
    mean = sum(own.logprobs) / len(own.logprobs)
    assert segment.avg_logprob == pytest.approx(mean, abs=1e-4)
    assert segment.temperature == 0 and segment.compression_ratio > 0
    assert not transcript.to_dict().get("logprobs")

    plain = official.audio.transcriptions.create(**asked, include=["logprobs"])
    assert plain.text == own.text
    assert [entry.token for entry in plain.logprobs] == list(own.pieces)
    assert [entry.logprob for entry in plain.logprobs] == pytest.approx(
        own.logprobs[: len(own.pieces)], abs=1e-4
    )
    assert official.audio.transcriptions.create(**asked).logprobs is None


@pytest.mark.parametrize(
    "change",
    [
        {"stream": True},
        {"timestamp_granularities": ["word"]},
        {"chunking_strategy": "auto"},
        {"known_speaker_names": ["Ada"]},
        {"language": "de"},
    ],
)
def test_what_a_transcription_does_not_support_is_refused_by_name(
    official: Any, runs: dict[str, Path], change: dict[str, Any]
):
    import openai

    sound = runs["speech"].parent / "sounds" / "3.wav"
    with pytest.raises(openai.BadRequestError) as error:
        official.audio.transcriptions.create(model="speech", file=sound, **change)
    assert error.value.param == next(iter(change)) and error.value.code == "unsupported"


def test_every_reference_of_the_schema_resolves(client: httpx.Client):
    schema = client.get("/openapi.json").json()
    references = []
    waiting: list[Any] = [schema]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            if isinstance(value.get("$ref"), str):
                references.append(value["$ref"])
            waiting.extend(value.values())
        elif isinstance(value, list):
            waiting.extend(value)
    assert "#/components/schemas/Message" in references
    for reference in references:
        assert reference.startswith("#/")
        target = schema
        for name in reference[2:].split("/"):
            target = target[name]
    body = schema["paths"]["/v1/audio/transcriptions"]["post"]["requestBody"]
    form = body["content"]["multipart/form-data"]["schema"]
    assert form["properties"]["file"]["format"] == "binary" and "file" in form["required"]
    assert "enum" in form["properties"]["response_format"]
    ask = schema["paths"]["/v1/ask"]["post"]["requestBody"]["content"]["application/json"]
    kinds = {part.get("$ref") for part in ask["schema"]["properties"]["input"]["anyOf"]}
    assert "#/components/schemas/Sound" in kinds
    page = client.get("/docs").text
    assert "StreamOptions" in page and "include_usage" in page


def test_the_tabs_of_the_page(client: httpx.Client):
    assert client.get("/").headers["content-type"].startswith("text/html")
    assert client.get("/page/../server.py").status_code == 404
    assert client.get("/page/%2e%2e%2fserver.py").status_code == 404
    curves = client.get("/v1/models/chat/curves").json()
    assert curves and all("step" in line for line in curves)
    report = client.get("/v1/models/chat/report")
    assert report.status_code == 200 and "sandbox" in report.headers["content-security-policy"]
    budget = client.get("/v1/budget?width=64&layers=2&heads=4&length=128").json()
    lengths = [point["length"] for point in budget["by_length"]]
    assert lengths == sorted(lengths)
    # The plot is as wide as the slider of the page, so the mark of its place is always in it.
    script = client.get("/page/budget.js").text
    slider = re.search(r"length: .*values: (\[.*?\])", script)
    assert slider and json.loads(slider[1]) == lengths
    longest = budget["by_length"][-1]
    assert longest["softmax"] > 0 and longest["linear"] > 0
    assert budget["softmax"]["parameters"] == budget["linear"]["parameters"] > 0
    assert {"orthogonal"} <= {entry["name"] for entry in client.get("/v1/lab").json()}
    assert client.get("/v1/lab/nothing").status_code == 404
    assert "/v1/ask" in client.get("/docs").text
    assert "/v1/ask" in client.get("/openapi.json").json()["paths"]


@pytest.mark.parametrize(("name", "kind"), [("captions", "image/png"), ("speech", "audio/wav")])
def test_examples_of_pictures_and_sounds(
    client: httpx.Client, runs: dict[str, Path], name: str, kind: str
):
    """Each is a file that `ask` takes too, and the model reads of it what it reads of its data."""
    names = client.get(f"/v1/models/{name}").json()["regard"]["examples"]
    assert len(names) == 4
    bundle = regard.load(runs[name])
    corpus = build.corpus(bundle.recipe, bundle.tokenizer)
    chosen = questions(corpus.train, bundle.task, at_most=4)  # nothing is held out
    for file, question in zip(names, chosen, strict=True):
        example = client.get(f"/v1/models/{name}/examples/{file}")
        assert example.headers["content-type"] == kind
        path = runs[name] / "examples" / file
        assert example.content == path.read_bytes()
        assert np.array_equal(bundle.task.source.read_one(path), np.asarray(question.given))


@pytest.mark.parametrize(
    "path", ["captions/examples/manifest.json", "captions/examples/..%2frecipe.json"]
)
def test_other_files_are_no_examples(client: httpx.Client, path: str):
    assert client.get(f"/v1/models/{path}").status_code == 404


def test_a_text_is_no_file(client: httpx.Client):
    (text, *_) = client.get("/v1/models/chat").json()["regard"]["examples"]
    assert client.get(f"/v1/models/chat/examples/{text}").status_code == 404


def test_requests_are_counted_by_route(client: httpx.Client, server: Server):
    def counted(path: str, status: int) -> float:
        text = client.get("/metrics").text
        start = f'regard_requests_total{{path="{path}",status="{status}"}} '
        lines = [line for line in text.splitlines() if line.startswith(start)]
        return sum(float(line.removeprefix(start)) for line in lines)

    before = [counted("/v1/models/{name}", 404), counted("other", 404), counted("other", 403)]
    client.get("/v1/models/made-up")
    client.get("/made/up")
    client.get("/", headers={"host": "example.org"})
    after = [counted("/v1/models/{name}", 404), counted("other", 404), counted("other", 403)]
    assert [new - old for old, new in zip(before, after, strict=True)] == [1, 1, 1]


# --- many at once ---


def test_the_same_text_alone_and_in_any_batch(client: httpx.Client, server: Server):
    prompts = [prompt for prompt, _ in PAIRS]
    long = HELLO | LONG
    alone = {prompt: text_of(chat(client, prompt, **LONG)) for prompt in prompts}
    assert len(set(alone.values())) > 5

    def ask(number: int) -> tuple[str, str]:
        prompt = prompts[number % len(prompts)]
        body = long | {"messages": [{"role": "user", "content": prompt}]}
        with server.client() as own:
            if number % 2:
                return prompt, text_of(own.post("/v1/chat/completions", json=body).json())
            chunks = stream(own, "/v1/chat/completions", body)
            parts = [chunk["choices"][0]["delta"].get("content", "") for chunk in chunks]
            return prompt, "".join(parts)

    with ThreadPoolExecutor(24) as pool:
        for prompt, text in pool.map(ask, range(48)):
            assert text == alone[prompt]


def test_an_engine_that_dies_is_started_again(runs: dict[str, Path]):
    server = Server([runs["chat"]], limits={"max_tokens": 6000})
    try:
        (engine,) = server.engine_pids()
        with server.client() as own:
            body = HELLO | LONGER | {"stream": True}
            with own.stream("POST", "/v1/chat/completions", json=body) as answer:
                lines = answer.iter_lines()
                next(lines)
                os.kill(engine, signal.SIGKILL)
                rest = [line for line in lines if line]
            error = json.loads(rest[-2].removeprefix("data: "))["error"]
            assert "try again" in error["message"] and rest[-1] == "data: [DONE]"
            while own.get("/ready").status_code != 200:
                time.sleep(0.1)
            assert own.post("/v1/chat/completions", json=HELLO).status_code == 200
            assert own.get("/health").json() == {"status": "ok"}
        assert server.engine_pids() != [engine]
    finally:
        server.stop()


def test_sigterm_lets_streams_finish(runs: dict[str, Path]):
    server = Server([runs["chat"]], limits={"max_tokens": 6000})
    with server.client() as own, server.client() as other:
        body = HELLO | LONGER | {"stream": True}
        with own.stream("POST", "/v1/chat/completions", json=body) as answer:
            lines = answer.iter_lines()
            next(lines)
            server.process.send_signal(signal.SIGTERM)
            while other.get("/ready").status_code == 200:  # the signal has not arrived yet
                time.sleep(0.01)
            assert other.get("/ready").json() == {"status": "draining"}
            refused = other.post("/v1/chat/completions", json=HELLO)
            assert refused.status_code == 503
            rest = [line for line in lines if line]
        assert rest[-1] == "data: [DONE]"
        assert json.loads(rest[-2].removeprefix("data: "))["choices"][0]["finish_reason"]
    assert server.process.wait(60) == 0
    server.stop()


# --- the command ---


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-m", "regard", "serve", *arguments]
    return subprocess.run(words, capture_output=True, text=True, timeout=120)


def test_mistakes_of_the_command_line_end_in_one_line(runs: dict[str, Path], tmp_path: Path):
    chat_run = str(runs["chat"])
    short_key = tmp_path / "key"
    short_key.write_text("short")
    for arguments in (
        [str(tmp_path / "none")],
        [str(tmp_path)],
        [chat_run, "--host", "0.0.0.0"],
        [chat_run, "--key-file", str(short_key)],
        [chat_run, "--key-file", str(tmp_path / "nothing")],
        [chat_run, chat_run],
        [chat_run, "--host", "203.0.113.7", "--insecure"],  # not an address of this machine
    ):
        result = command(*arguments)
        assert result.returncode == 2, (arguments, result.stderr)
        assert "Traceback" not in result.stderr and result.stderr.count("\n") == 1


def test_ctrl_c_while_models_load_ends_in_one_line(runs: dict[str, Path]):
    command_line = [sys.executable, "-m", "regard", "serve", str(runs["chat"]), "--port", "0"]
    with subprocess.Popen(
        command_line,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A shell starts programs of the background with Ctrl-C ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    ) as process:
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        while not (engines := children.read_text().split()):
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=60)
    assert process.returncode == 130 and output == ""
    assert errors.strip() == "regard: stopped"
    assert not any(Path(f"/proc/{engine}").exists() for engine in engines)


def test_two_workers_share_the_requests(runs: dict[str, Path]):
    server = Server([runs["chat"]], "--workers", "2")
    try:
        assert len(server.engine_pids()) == 2
        with server.client() as own, ThreadPoolExecutor(8) as pool:
            replies = pool.map(lambda pair: text_of(chat(own, pair[0], temperature=0)), PAIRS)
            assert list(replies) == [reply for _, reply in PAIRS]
    finally:
        assert server.stop(signal.SIGINT) == 0
