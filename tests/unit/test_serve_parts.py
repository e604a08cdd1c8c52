"""Parts of the server that need no process: frames, fields, stop strings, options."""

from __future__ import annotations

import asyncio
import inspect
import json
import random
from pathlib import Path
from typing import Any

import pytest

from regard.search import Options
from regard.serve import ask_routes, questions
from regard.serve.api_errors import ApiError
from regard.serve.fields import (
    TRANSCRIPTION_FIELDS,
    AskBody,
    ChatBody,
    CompletionBody,
    check_form,
    checked,
    parse_json,
)
from regard.serve.frames import BrokenFrame, Frame, FrameBuffer, read_frame_async
from regard.serve.jobs import Job
from regard.serve.limits import Limits
from regard.serve.stop_strings import StopStrings, TokensBeforeStop

LIMITS = Limits()
OWN = dict(Options(max_new_tokens=48, do_sample=True, candidates=4, top_p=0.7))
MODEL = {
    "task": "chat",
    "input": "text",
    "options": OWN,
    "max_source": 100,
    "turns": 3,
    "places": None,
    "reads_characters": False,
}
CHAT = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}


def test_frames_come_back_as_they_were():
    frames = [Frame({"a": "ä\ud800", "n": [1, None]}, b"\x00\xff"), Frame({})]
    content = b"".join(frame.to_bytes() for frame in frames)
    for size in (1, 5, len(content)):
        buffer = FrameBuffer()
        pieces = [content[start : start + size] for start in range(0, len(content), size)]
        assert [frame for piece in pieces for frame in buffer.add(piece)] == frames

    async def read() -> list[Frame | None]:
        reader = asyncio.StreamReader()
        reader.feed_data(content)
        reader.feed_eof()
        return [await read_frame_async(reader) for _ in range(3)]

    assert asyncio.run(read()) == [*frames, None]


@pytest.mark.parametrize("length", [1, 7, 9, 15])
def test_a_frame_that_is_cut_is_broken(length: int):
    content = Frame({"a": 1}, b"xyz").to_bytes()[:length]
    assert FrameBuffer().add(content) == []  # the rest may still come

    async def read() -> None:
        reader = asyncio.StreamReader()
        reader.feed_data(content)
        reader.feed_eof()
        await read_frame_async(reader)

    with pytest.raises(BrokenFrame):
        asyncio.run(read())


def test_a_frame_does_not_promise_gigabytes():
    with pytest.raises(BrokenFrame):
        FrameBuffer().add(b"\xff" * 8)


def test_jobs_come_back_as_they_were():
    turns = [{"role": "user", "content": "Hi"}]
    job = Job((7, 8), (3, 4), turns, OWN, ("x",), (5, 6), stream=True, media=b"ab")
    assert Job.from_frame(job.to_frame()) == job


def test_stop_strings_wherever_the_text_is_cut():
    draw = random.Random(1)
    for _ in range(2000):
        text = "".join(draw.choice("ab") for _ in range(draw.randrange(12)))
        stops = ["".join(draw.choice("ab") for _ in range(draw.randrange(1, 4))) for _ in range(2)]
        search = StopStrings(stops)
        ends = [(text.find(stop) + len(stop), text.find(stop)) for stop in stops if stop in text]
        wanted = text[: min(ends)[1]] if ends else text
        seen = ""
        rest = text
        while rest:
            cut = draw.randrange(1, len(rest) + 1)
            seen += search.add(rest[:cut])
            rest = rest[cut:]
            assert wanted.startswith(seen)
        assert seen + search.rest() == wanted and search.found == bool(ends)


def test_tokens_come_when_their_text_is_certain_wherever_the_stop_string_is():
    """Joined, the texts of the tokens are the text before the stop string. No token after it, and
    none that is empty at its end, is kept."""
    draw = random.Random(2)
    for _ in range(3000):
        texts = ["".join(draw.choice("ab") for _ in range(draw.randrange(4))) for _ in range(6)]
        stops = ["".join(draw.choice("ab") for _ in range(draw.randrange(1, 4))) for _ in range(2)]
        whole = "".join(texts)
        ends = [(whole.find(stop) + len(stop), whole.find(stop)) for stop in stops if stop in whole]
        wanted = whole[: min(ends)[1]] if ends else whole
        held = TokensBeforeStop[int](stops)
        kept: list[tuple[int, str]] = []
        for number, text in enumerate(texts):
            kept += held.add(number, text)
            assert wanted.startswith("".join(text for _, text in kept))
            if held.found:
                break
        assert held.found == bool(ends)
        if not ends:
            kept += held.rest()
        assert "".join(text for _, text in kept) == wanted
        assert [number for number, _ in kept] == list(range(len(kept)))
        assert all(text == texts[number] for number, text in kept[:-1])
        if ends:
            assert all(text for _, text in kept[-1:])
            assert all(texts[number].startswith(text) for number, text in kept[-1:])
        else:
            assert len(kept) == len(texts)


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"temperature": 2.1}, "temperature"),
        ({"temperature": "1"}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"n": 0}, "n"),
        ({"n": True}, "n"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"seed": 2**70}, "seed"),
        ({"stop": 5}, "stop.str"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages.0.role"),
        ({"messages": [{"role": "user"}]}, "messages.0.content"),
        ({"messages": [{"role": "user", "content": None}]}, "messages.0.content"),
        ({"messages": [{"role": "system", "content": None}]}, "messages.0.content"),
        ({"tools": [{"type": "function"}]}, "tools"),
        ({"frequency_penalty": 0.5}, "frequency_penalty"),
        ({"logit_bias": {"5": 1}}, "logit_bias"),
        ({"response_format": {"type": "json_object"}}, "response_format.type"),
        ({"top_logprobs": 21}, "top_logprobs"),
        ({"stram": True}, "stram"),
        ({"stream_options": {"include_obfuscation": True}}, "stream_options.include_obfuscation"),
        ({"echo": 0}, "echo"),
    ],
)
def test_a_wrong_field_is_refused_by_name(changes: dict, param: str):
    with pytest.raises(ApiError) as caught:
        checked(ChatBody, CHAT | changes)
    assert caught.value.status == 400 and caught.value.param == param
    assert param.split(".")[0] in caught.value.message


def test_a_field_that_changes_nothing_is_allowed():
    harmless = {"tools": [], "frequency_penalty": 0, "logit_bias": {}, "store": False}
    harmless |= {"presence_penalty": None, "service_tier": "auto", "parallel_tool_calls": True}
    harmless |= {"stream_options": {"include_obfuscation": False, "include_usage": True}}
    assert checked(ChatBody, CHAT | harmless).model == "m"
    assert checked(CompletionBody, {"prompt": "x", "echo": False, "best_of": 1}).prompt == "x"


@pytest.mark.parametrize(
    "harmless",
    [
        {"frequency_penalty": 0.0, "presence_penalty": -0.0},
        {"best_of": 1.0},
        {"verbosity": "medium"},
        {"prompt_cache_retention": None, "moderation": None, "prompt_cache_options": None},
        {"reasoning_effort": "none"},
    ],
)
def test_a_number_that_changes_nothing_may_be_written_with_a_point(harmless: dict):
    assert checked(ChatBody, CHAT | harmless).model == "m"


@pytest.mark.parametrize("name", ["frequency_penalty", "presence_penalty", "best_of"])
@pytest.mark.parametrize("value", [True, False, "0", [0], 1e-9])
def test_what_only_resembles_a_number_that_changes_nothing_is_refused(name: str, value: object):
    with pytest.raises(ApiError) as caught:
        checked(ChatBody, CHAT | {name: value})
    assert caught.value.param == name


def parameters(method: Any) -> set[str]:
    """The fields of a request that the official client knows."""
    names = set(inspect.signature(method).parameters)
    return names - {"extra_headers", "extra_query", "extra_body", "timeout"}


def test_every_field_of_the_official_client_is_supported_or_refused_by_name():
    openai = pytest.importorskip("openai", reason="needs the official client (extra dev)")
    client = openai.OpenAI(api_key="none")
    bodies: list[tuple[Any, Any, dict]] = [
        (client.chat.completions.create, ChatBody, CHAT),
        (client.completions.create, CompletionBody, {"prompt": "x"}),
    ]
    for method, kind, body in bodies:
        names = parameters(method)
        assert len(names) > 15
        for name in sorted(names - set(kind.model_fields)):
            checked(kind, body | {name: None})
            with pytest.raises(ApiError) as caught:
                checked(kind, body | {name: {"no such": "value"}})
            assert caught.value.param == name and caught.value.code == "unsupported", name
    names = parameters(client.audio.transcriptions.create)
    assert len(names) > 10
    for name in sorted(names - TRANSCRIPTION_FIELDS):
        for written in (name, f"{name}[]"):
            check_form([(written, "")])
            with pytest.raises(ApiError) as caught:
                check_form([(written, "no such value")])
            assert caught.value.param == name and caught.value.code == "unsupported", name


@pytest.mark.parametrize(
    ("name", "value", "is_harmless"),
    [
        ("stream", "false", True),
        ("stream", "true", False),
        ("timestamp_granularities[]", "segment", True),
        ("timestamp_granularities[]", "word", False),
        ("chunking_strategy", "", True),
        ("chunking_strategy", "auto", False),
        ("chunking_strategy[type]", "server_vad", False),
        ("include[]", "logprobs", True),
        ("include[]", "everything", False),
        ("language", "", True),
        ("language", "de", False),
        ("sampling", "1", False),
        ("temperature", "1", True),
        ("temperature[]", "1", False),
        ("model[0]", "m", False),
    ],
)
def test_fields_of_a_transcription(name: str, value: str, is_harmless: bool):
    form = [("file", "…"), ("model", "m"), (name, value)]
    if is_harmless:
        check_form(form)
        return
    with pytest.raises(ApiError) as caught:
        check_form(form)
    assert caught.value.status == 400 and caught.value.param == name.partition("[")[0]


def test_one_of_several_values_is_enough_to_be_refused():
    name = "timestamp_granularities[]"
    with pytest.raises(ApiError, match="timestamp_granularities"):
        check_form([(name, "word"), (name, "segment")])


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b"null",
        b"{",
        b'{"a": NaN}',
        b'{"a": 1e999}',
        b"\xff\xfe",
        b'{"messages": "\xff"}',
        b"[" * 100_000,
        b'{"a":' * 50_000,
        b'{"a": 1' + b"0" * 5000 + b"}",
    ],
)
def test_a_body_that_is_no_object_is_refused(content: bytes):
    with pytest.raises(ApiError) as caught:
        checked(ChatBody, parse_json(content))
    assert caught.value.status == 400
    assert len(json.dumps(caught.value.body())) < 4096


def options_for(**fields: object) -> Options:
    return questions.search_options(MODEL, LIMITS, **fields)  # type: ignore[arg-type]


def media_part(kind: str, **fields: str) -> dict:
    own = {"url": "data:,x"} if kind == "image_url" else {"data": "aGk="}
    return CHAT | {"messages": [{"role": "user", "content": [{"type": kind, kind: own | fields}]}]}


def test_what_is_said_of_a_file_is_known_or_refused_by_name():
    """Values that change nothing are allowed: a file says itself what it is."""
    for detail in ("auto", "low", "high"):
        checked(ChatBody, media_part("image_url", detail=detail))
    for ending in ("wav", "mp3", "flac", "ogg"):
        checked(ChatBody, media_part("input_audio", format=ending))
    for kind, name in (("image_url", "detail"), ("input_audio", "format")):
        with pytest.raises(ApiError) as caught:
            checked(ChatBody, media_part(kind, **{name: "other"}))
        assert caught.value.status == 400
        assert caught.value.param == f"messages.0.content.0.{kind}.{name}"


def test_what_a_request_counts_for():
    def tokens(question: questions.Question, **changes: object) -> int:
        return questions.tokens_of(question, Options(max_new_tokens=7), MODEL | changes)

    text = questions.Question("x" * 30)
    assert tokens(text) == 11 + 7
    assert tokens(text, reads_characters=True) == 31 + 7
    assert tokens(text, max_source=5) == 5 + 7
    sound = questions.Question(None, b"RIFF")
    assert tokens(sound, max_source=None, places=500) == 500 + 7


def test_a_search_fits_into_the_batch():
    own = {"do_sample": True, "candidates": 16}
    for changes in (own | {"retrieved": 32}, own | {"mmi_weight": 0.4}):
        assert questions.rows_of(options_for(changes=changes)) <= LIMITS.rows
    wide: dict[str, Any] = own | {"retrieved": 32, "mmi_weight": 0.4}
    with pytest.raises(ApiError, match="at most 64 together; got 96") as caught:
        options_for(changes=wide)
    assert caught.value.status == 400
    recipe = MODEL | {"options": dict(Options(**wide))}
    assert questions.rows_of(questions.search_options(recipe, LIMITS)) == 96


@pytest.mark.parametrize(
    ("length", "status", "code"),
    [(100_001, 400, "context_length_exceeded"), (1_000_001, 413, "request_too_large")],
)
def test_a_text_that_is_too_long_is_refused(length: int, status: int, code: str):
    questions.check_length(questions.Question("x" * 100_000), LIMITS, "prompt")
    for text in ("x" * length, [{"role": "user", "content": "x" * length}]):
        with pytest.raises(ApiError) as caught:
            questions.check_length(questions.Question(text), LIMITS, "prompt")
        assert (caught.value.status, caught.value.code) == (status, code)
        assert caught.value.param == "prompt"


def test_turns_that_a_model_does_not_read_count_for_nothing():
    turns = [{"role": "user", "content": "x" * 40_000}, {"role": "assistant", "content": "y"}]
    body = checked(ChatBody, {"messages": [*turns * 3, {"role": "user", "content": "Hi"}]})
    for read, count in ((0, 1), (1, 1), (3, 3), (9, 7)):
        question = questions.from_messages(MODEL | {"turns": read}, body.messages, LIMITS)
        assert isinstance(question.text, list) and len(question.text) == count
        assert question.text[-1]["content"] == "Hi"


def test_options_of_a_request():
    assert options_for() == Options(**OWN)
    assert options_for(temperature=0) == Options(max_new_tokens=48)
    assert options_for(temperature=0.5).candidates == 4  # the recipe's own search, cooler
    assert options_for(top_p=0.9).top_p == 0.9
    assert options_for(max_tokens=7).max_new_tokens == 7
    assert options_for(changes={"num_beams": 3}).do_sample is False
    assert options_for(changes={"retrieved": 5}).retrieved == 5
    assert questions.rows_of(options_for(changes={"retrieved": 5})) == questions.rows_of(
        options_for()
    ) + 5 * (2 if OWN.get("mmi_steps", 5) and OWN.get("mmi_weight") else 1)
    greedy = MODEL | {"options": dict(Options(num_beams=4))}
    drawn = questions.search_options(greedy, LIMITS, temperature=1.0)
    assert drawn.do_sample and drawn.num_beams == 1


@pytest.mark.parametrize(
    "fields",
    [
        {"max_tokens": LIMITS.max_tokens + 1},
        {"changes": {"num_beams": LIMITS.num_beams + 1}},
        {"changes": {"candidates": 10**6}},
        {"changes": {"retrieved": LIMITS.retrieved + 1}},
        {"changes": {"num_beems": 2}},
        {"changes": {"temperature": -1}},
        {"changes": {"top_k": "many"}},
    ],
)
def test_options_out_of_bounds_are_refused(fields: dict):
    with pytest.raises(ApiError) as caught:
        options_for(**fields)
    assert caught.value.status == 400


def test_a_recipe_may_search_more_widely_than_a_request():
    wide = MODEL | {"options": dict(Options(num_beams=40, max_new_tokens=2000))}
    assert questions.search_options(wide, LIMITS).num_beams == 40


def test_what_a_conversation_asks():
    messages = [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": [{"type": "text", "text": "Hi"}]},
    ]
    body = checked(ChatBody, {"messages": messages})
    question = questions.from_messages(MODEL, body.messages, LIMITS)
    assert question.text == [{"role": "user", "content": "Hi"}]
    assert question.ignored and "system" in question.ignored[0]
    translator = MODEL | {"task": "translate"}
    assert questions.from_messages(translator, body.messages, LIMITS).text == "Hi"


def test_a_turn_of_the_assistant_without_text_is_left_out():
    """Clients send back answers that had calls of tools, or a refusal, and no text."""
    question = {"role": "user", "content": "Hi"}
    for empty in (
        {"role": "assistant", "content": None, "tool_calls": [{}]},
        {"role": "assistant", "content": None, "refusal": "no"},
        {"role": "assistant", "tool_calls": [{}]},
    ):
        body = checked(ChatBody, {"messages": [question, empty, question]})
        assert questions.from_messages(MODEL, body.messages, LIMITS).text == [question, question]
        last = checked(ChatBody, {"messages": [question, empty]})
        assert questions.from_messages(MODEL, last.messages, LIMITS).text == [question]
        alone = checked(ChatBody, {"messages": [empty]})
        with pytest.raises(ApiError, match="no message of the user"):
            questions.from_messages(MODEL, alone.messages, LIMITS)


@pytest.mark.parametrize("url", ["http://example.org/a.png", "file:///etc/passwd", "data:,x", "x"])
def test_no_address_is_fetched(url: str):
    with pytest.raises(ApiError) as caught:
        questions.data_uri(url)
    assert caught.value.status == 400


def test_a_picture_model_reads_one_picture():
    model = MODEL | {"task": "caption", "input": "picture"}
    part = {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}}
    for count, fits in ((0, False), (1, True), (2, False)):
        content = [{"type": "text", "text": "what is it?"}, *[part] * count]
        body = checked(ChatBody, {"messages": [{"role": "user", "content": content}]})
        if fits:
            assert questions.from_messages(model, body.messages, LIMITS).media == b"hi"
        else:
            with pytest.raises(ApiError, match="one picture"):
                questions.from_messages(model, body.messages, LIMITS)


def test_the_input_of_ask_has_the_kind_of_the_model():
    body = checked(AskBody, {"input": {"sound": "data:audio/wav;base64,aGk="}})
    with pytest.raises(ApiError, match="reads text"):
        questions.from_input(MODEL, body.input, LIMITS)


@pytest.mark.parametrize("kind", ["valid", "training_examples", "changed"])
def test_of_a_long_log_only_lines_about_training_steps_are_left_out(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(ask_routes, "MAX_CURVE_LINES", 4)
    file = tmp_path / "metrics.jsonl"
    lines: list[dict[str, Any]] = [{"step": step, "kind": "train"} for step in range(6)]
    lines += [{"step": 6}, {"step": 6, "kind": kind}]  # no line of ours is without a kind
    file.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    steps = [line["step"] for line in lines[:6:2]]
    few = ask_routes._curve_lines(file)
    assert [line["step"] for line in few if line.get("kind") == "train"] == steps
    assert few[-1] == lines[-1]


def test_an_experiment_that_takes_too_long_is_a_clear_503(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(ask_routes, "LAB_SECONDS", 0.01)
    with pytest.raises(ApiError) as caught:
        asyncio.run(ask_routes.LabPages().page("orthogonal"))
    assert caught.value.status == 503 and caught.value.code == "deadline"
    assert "regard lab orthogonal --html" in caught.value.message


def test_a_slow_experiment_does_not_hold_up_pages_that_are_made(monkeypatch: pytest.MonkeyPatch):
    """Nor does it keep those who ask for another one waiting without end."""

    async def run(pages: ask_routes.LabPages, name: str) -> str:
        if name == "slow":
            await asyncio.sleep(3600)
        return f"page of {name}"

    async def ask() -> None:
        pages = ask_routes.LabPages()
        assert await pages.page("quick") == "page of quick"
        slow = asyncio.create_task(pages.page("slow"))
        await asyncio.sleep(0)
        assert await asyncio.wait_for(pages.page("quick"), 60) == "page of quick"
        with pytest.raises(ApiError, match="another experiment is running") as caught:
            await asyncio.wait_for(pages.page("other"), 20)
        assert caught.value.status == 503 and caught.value.retry_after
        slow.cancel()
        with pytest.raises(asyncio.CancelledError):
            await slow
        assert await pages.page("other") == "page of other"

    monkeypatch.setattr(ask_routes.LabPages, "_run", run)
    monkeypatch.setattr(ask_routes, "LAB_SECONDS", 0.05)
    asyncio.run(ask())
