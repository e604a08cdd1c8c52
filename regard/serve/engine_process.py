"""The process that answers: one model, one engine, and a socket to the web process.

    python -m regard.serve.engine_process --socket FD --run RUN --name NAME …

The main thread reads jobs, lets the engine step as long as there is work, and reports once a step.
Two more threads do what would hold up the steps of other jobs: one turns files and long texts into
rows, one measures effects, which takes many passes of the decoder. Short texts are read between two
steps, as many as a slice of time allows: a thread for them would cost more, because it and the
steps wait for each other. What is cancelled is not begun; an effect ends between two passes.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import select
import signal
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
import torch

from regard import bundle as bundles
from regard.bundle import Bundle
from regard.errors import BundleError, InputError, RegardError
from regard.pages.attend import Subject, with_effect
from regard.search import Options, Outputs, Request, StreamedToken
from regard.search.engine import SLICE
from regard.serve import examples
from regard.serve.frames import BrokenFrame, Frame, FrameBuffer, groups
from regard.serve.jobs import Fault, Job, Turns, Update, failure
from regard.serve.limits import MB
from regard.serve.stop_strings import TokensBeforeStop
from regard.tasks.sources import PictureSource, SoundSource, TextSource
from regard.tokenizers import Tokenizer
from regard.tokenizers.characters import Characters
from regard.values import Alternative, Answer

DIGITS = 4  # of weights and probabilities in JSON
SHORT_TEXT = 2000  # characters
PIECE = 1 << 18  # bytes that are read at once
MAX_KNOWN_OPTIONS = 256
MAX_REPORT = 1 << 18  # bytes of the updates of a report; the web process reads it in one go
MAX_UPDATE = 32 * MB  # bytes of one of them
MAX_EFFECT_CELLS = 20_000  # tokens x places; beyond it, effects would take minutes


class TextOfTokens:
    """The text of tokens that come one by one."""

    def __init__(self, tokenizer: Tokenizer):
        self._waiting: deque[int] = deque()
        self._pieces = tokenizer.pieces(iter(self._waiting.popleft, None))

    def add(self, token: int) -> str:
        """The text that this token appends."""
        self._waiting.append(token)
        return next(self._pieces)


class ActiveJob:
    """One answer of a job that the engine is searching."""

    def __init__(
        self, number: int, job: Job, row: np.ndarray, request: Request, tokenizer: Tokenizer
    ):
        self.number = number
        self.job = job
        self.row = row
        self.request = request
        self.text = TextOfTokens(tokenizer)
        self.before_stop = TokensBeforeStop[StreamedToken](job.stops)
        self.has_begun = False
        self.started = False
        self.first_weights: torch.Tensor | None = None
        self.tokens: list[StreamedToken] = []  # that are certainly before a stop string
        self.pieces: list[str] = []  # the text of each

    def certain(self, token: StreamedToken) -> list[tuple[StreamedToken, str]]:
        """The tokens, with their texts, that are part of the answer now that this one has come."""
        text = self.text.add(token.token)
        return self.before_stop.add(token, text) if self.job.stops else [(token, text)]


T = TypeVar("T")


class Backlog(Generic[T]):
    """Work for a thread, in the order it came. What nobody wants any more is dropped."""

    def __init__(self) -> None:
        self._items: deque[T] = deque()
        self._changed = threading.Condition()

    def __len__(self) -> int:
        return len(self._items)

    def put(self, item: T) -> None:
        with self._changed:
            self._items.append(item)
            self._changed.notify()

    def get(self) -> T:
        """Wait for the first one, and take it."""
        with self._changed:
            while not self._items:
                self._changed.wait()
            return self._items.popleft()

    def keep(self, is_wanted: Callable[[T], bool]) -> None:
        """Drop the others."""
        with self._changed:
            self._items = deque(item for item in self._items if is_wanted(item))


class Abandoned(Exception):
    """What is under way was cancelled."""


class EngineProcess:
    """Answers the jobs that come through a socket."""

    def __init__(self, bundle: Bundle, connection: socket.socket, *, max_rows: int):
        self.bundle = bundle
        self.engine = bundle.engine(max_rows=max_rows)
        self._connection = connection
        self._frames = FrameBuffer()
        self._write_lock = threading.Lock()
        self._active: dict[int, ActiveJob] = {}
        self._reading: set[int] = set()  # numbers of answers whose input is yet to be read
        self._measuring: set[int] = set()  # and of those whose effect is yet to be measured
        self._lock = threading.Lock()  # of the three above: threads change them
        self._wake_up, self._waker = os.pipe()  # a byte ends the waiting of the main thread
        os.set_blocking(self._waker, False)
        self._rows_sent = 0
        self._options: dict[tuple[Any, ...], Options] = {}  # of jobs, checked already
        self._short: deque[Job] = deque()
        self._large: Backlog[Job] = Backlog()
        self._effects: Backlog[tuple[ActiveJob, Answer]] = Backlog()
        # Of the next report: their effects are measured after it, or they might end before the
        # last of their tokens are sent.
        self._effects_to_come: list[tuple[ActiveJob, Answer]] = []

    def run(self) -> None:
        """Answer until the web process closes the socket."""
        threading.Thread(target=self._measure_effects, daemon=True).start()
        threading.Thread(target=self._read_large, daemon=True).start()
        with contextlib.suppress(BrokenFrame, OSError):
            while self.turn():
                pass
        os._exit(0)  # the web process has ended, and nobody waits for an answer

    def turn(self) -> bool:
        """Read what has come, make a step, and report. False: the web process has ended."""
        if not self._receive(wait=not self.engine.busy and not self._short):
            return False
        self._read_short()
        if self.engine.busy:
            self.engine.step()
        self._report()
        return True

    # --- what comes in ---

    def _receive(self, *, wait: bool) -> bool:
        """Read what has come, and wait for it if there is nothing else to do. False: the web
        process has closed the socket."""
        if wait:
            ready, _, _ = select.select([self._connection, self._wake_up], [], [])
            if self._wake_up in ready:
                os.read(self._wake_up, PIECE)
        while True:
            try:
                content = self._connection.recv(PIECE, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return True
            if not content:
                return False
            for frame in self._frames.add(content):
                if "job" in frame.header:
                    self._begin(Job.from_frame(frame))
                elif "cancel" in frame.header:
                    self._cancel(frame.header["cancel"])

    def _begin(self, job: Job) -> None:
        with self._lock:
            self._reading.update(job.numbers)
        if _is_short(job.input):
            self._short.append(job)
        else:
            self._large.put(job)

    def _read_short(self) -> None:
        """Read short texts, in the order they came, until a slice of time has passed."""
        end = time.perf_counter() + SLICE
        while self._short:
            job = self._short.popleft()
            if self._is_wanted(job):
                self._read(job)
                if time.perf_counter() >= end:
                    return

    def _read_large(self) -> None:
        while True:
            self._read(self._large.get())
            with contextlib.suppress(BlockingIOError):  # enough bytes are waiting
                os.write(self._waker, b"1")

    def _is_wanted(self, job: Job) -> bool:
        """Whether any answer of a job that is yet to be read has not been cancelled."""
        with self._lock:
            return not self._reading.isdisjoint(job.numbers)

    def _read(self, job: Job) -> None:
        """Turn the input of a job into a row, and submit it."""
        try:
            answers = self._submitted(job)
        except BundleError as problem:
            self._fail(job, "model", str(problem))
        except RegardError as problem:
            self._fail(job, "input", str(problem))
        except MemoryError:
            self._fail(job, "overload", "the input needs too much memory")
        except Exception as problem:
            self._fail(job, "model", _one_line(problem))
        else:
            with self._lock:
                for active in answers:
                    if active.number in self._reading:
                        self._active[active.number] = active
                    else:  # cancelled meanwhile
                        self.engine.cancel(active.request)
                self._reading.difference_update(job.numbers)

    def _fail(self, job: Job, fault: Fault, message: str) -> None:
        with self._lock:
            self._reading.difference_update(job.numbers)
        self._send([failure(number, fault, message) for number in job.numbers])

    def _submitted(self, job: Job) -> list[ActiveJob]:
        task = self.bundle.task
        options = self._checked_options(job.options)
        size = task.answer_tokenizer.size
        if job.prefix and not all(0 <= token < size for token in job.prefix):
            raise InputError(f"a token is a number from 0 to {size - 1:,}", where="prefix")
        try:
            row = task.read_one(job.media if job.input is None else job.input)
        except ValueError as problem:  # of a library that decodes pictures, for instance
            raise InputError(str(problem)) from problem
        raw, mask = task.sources([row])
        outputs = Outputs(
            weights=job.attention or job.effect,
            scores=job.logprobs,
            alternatives=job.alternatives,
            stream=job.stream or bool(job.stops),
        )
        requests = self.engine.submit_copies(
            raw, mask, options, seeds=job.seeds, outputs=outputs, prefix=job.prefix
        )
        return [
            ActiveJob(number, job, row, request, task.answer_tokenizer)
            for number, request in zip(job.numbers, requests, strict=True)
        ]

    def _checked_options(self, fields: dict[str, Any]) -> Options:
        """The search options of a job. Most jobs have the same, and to check them against the
        recipe takes longer than some answers."""
        key = tuple(fields.items())
        options = self._options.get(key)
        if options is None:
            options = self.bundle.search_options(Options(**fields))
            if len(self._options) >= MAX_KNOWN_OPTIONS:
                self._options.clear()
            self._options[key] = options
        return options

    def _cancel(self, number: int) -> None:
        with self._lock:
            was_reading = number in self._reading
            was_measuring = number in self._measuring
            self._reading.discard(number)
            self._measuring.discard(number)
            active = self._active.pop(number, None)
        if active is not None:
            self.engine.cancel(active.request)
        if was_reading:
            self._large.keep(self._is_wanted)
        if was_measuring:
            self._effects.keep(lambda item: item[0].number in self._measuring)

    # --- what goes out ---

    def _report(self) -> None:
        """Send what has come of all jobs since the last report."""
        with self._lock:
            under_way = list(self._active.values())
        updates: list[Update] = []
        ended = []
        for active in under_way:
            request = active.request
            if request.has_begun and not active.has_begun:
                active.has_begun = True
                if not active.job.stream:  # a stream says it with its first token
                    updates.append({"job": active.number, "begun": True})
            if not request.has_tokens and not request.done:
                continue
            try:
                self._add_updates(active, updates)
            except Exception as problem:  # of this job: the others go on
                self.engine.cancel(request)
                updates.append(failure(active.number, "model", _one_line(problem)))
            if request.done:
                ended.append(active.number)
        if ended:
            with self._lock:
                for number in ended:
                    self._active.pop(number, None)
        if updates or self.engine.rows != self._rows_sent:
            self._send(updates)
        for item in self._effects_to_come:
            self._effects.put(item)
        self._effects_to_come.clear()

    def _add_updates(self, active: ActiveJob, updates: list[Update]) -> None:
        request = active.request
        number = active.number
        for token in request.tokens():
            if not active.started:
                updates.append(self._started(active, token.weights))
            self._add_tokens(active, active.certain(token), updates)
            if active.before_stop.found:
                self.engine.cancel(request)
                self._end(active, self._stopped_answer(active), updates)
                return
        if not request.done or request.cancelled:
            return
        if request.error is not None:
            fault = "input" if isinstance(request.error, InputError) else "model"
            updates.append(failure(number, fault, _one_line(request.error)))
            return
        self._add_answer(active, updates)

    def _add_answer(self, active: ActiveJob, updates: list[Update]) -> None:
        answer = self._answer(active)
        if not active.started:
            weights = None if answer.weights is None else answer.weights[0]
            updates.append(self._started(active, weights))
        self._add_tokens(active, active.before_stop.rest(), updates)
        self._end(active, answer, updates)

    def _add_tokens(
        self,
        active: ActiveJob,
        tokens: Sequence[tuple[StreamedToken, str]],
        updates: list[Update],
    ) -> None:
        for token, text in tokens:
            active.tokens.append(token)
            active.pieces.append(text)
            if active.job.stream:
                record = self._token_record(active, token, text)
                updates.append({"job": active.number, "token": record})

    def _end(self, active: ActiveJob, answer: Answer, updates: list[Update]) -> None:
        """Report an answer, after its effects have been measured if the job wants them."""
        if active.job.effect:
            with self._lock:
                self._measuring.add(active.number)
            self._effects_to_come.append((active, answer))
            return
        updates.append({"job": active.number, "finished": self._record(active, answer)})

    def _record(self, active: ActiveJob, answer: Answer) -> dict[str, Any]:
        record = answer_record(answer, active.job)
        source = self.bundle.task.source
        if isinstance(source, SoundSource):
            record["seconds"] = round(len(active.row) / source.rate, DIGITS)
        return record

    def _answer(self, active: ActiveJob) -> Answer:
        hypothesis = active.request.result()[0]
        job = active.job
        looks_inside = job.attention or job.effect or job.alternatives
        # Of several candidates, the one that is chosen may be retrieved.
        was_streamed = job.stream and active.request.streams_at_once
        is_text = self.bundle.task.answers_are_text
        if looks_inside or job.stops or not was_streamed or not is_text:
            return self.bundle.answers_from(active.row, [hypothesis])[0]
        # Its pieces are known, and nobody asks for the names of places.
        return Answer(
            tokens=hypothesis.tokens,
            text="".join(active.pieces),
            score=hypothesis.score,
            pieces=tuple(active.pieces),
            logprobs=hypothesis.logprobs,
            finish=hypothesis.finish,
            weights=None,
            place_names=(),
            grid=self.bundle.model.frontend.grid,
        )

    def _started(self, active: ActiveJob, weights: torch.Tensor | None) -> Update:
        """The first update of an answer, when the number of places of its memory is known."""
        active.started = True
        active.first_weights = weights
        task = self.bundle.task
        grid = self.bundle.model.frontend.grid
        places = None if weights is None else weights.shape[-1]
        names = task.place_names(active.row, places, grid) if active.job.attention else ()
        is_text = isinstance(task.source, TextSource)
        started = {
            "prompt_tokens": len(active.row) if is_text else places or 1,
            "place_names": list(names),
            "grid": None if grid is None else list(grid),
        }
        return {"job": active.number, "started": started}

    def _token_record(self, active: ActiveJob, token: StreamedToken, text: str) -> dict[str, Any]:
        record: dict[str, Any] = {
            "token": token.token,
            "text": text,
            "logprob": _number(token.logprob) if active.job.logprobs else None,
        }
        if active.job.attention:
            weights = token.weights
            record["weights"] = None if weights is None else _rounded(weights.mean(0))
        if token.alternatives is not None:
            tokens = [streamed.token for streamed in active.tokens[:-1]]
            record["alternatives"] = [
                _alternative_record(alternative, active.job)
                for alternative in self.bundle.alternatives_after(tokens, token.alternatives)
            ]
        return record

    def _stopped_answer(self, active: ActiveJob) -> Answer:
        """The answer that a stop string has ended: the tokens before it, perhaps none."""
        tokens, request = active.tokens, active.request
        numbers = [token.token for token in tokens]
        weights = None
        places = None
        if active.first_weights is not None:
            like = active.first_weights
            rows = [token.weights for token in tokens if token.weights is not None]
            weights = torch.stack(rows) if rows else like.new_empty((0, *like.shape))
            places = like.shape[-1]
        grid = self.bundle.model.frontend.grid
        alternatives = None
        if active.job.alternatives:
            alternatives = tuple(
                self.bundle.alternatives_after(numbers[:t], token.alternatives or ())
                for t, token in enumerate(tokens)
            )
        return Answer(
            tokens=tuple(numbers),
            text="".join(active.pieces),
            score=math.fsum(token.logprob for token in tokens),
            pieces=tuple(active.pieces),
            logprobs=tuple(token.logprob for token in tokens),
            finish="stop",
            weights=weights,
            place_names=self.bundle.task.place_names(active.row, places, grid),
            grid=grid,
            alternatives=alternatives,
            retrieved=bool(request.hypotheses) and request.hypotheses[0].retrieved,
        )

    def _measure_effects(self) -> None:
        while True:
            self._measure_effect(*self._effects.get())

    def _measure_effect(self, active: ActiveJob, answer: Answer) -> None:
        try:
            self._send([self._with_effect(active, answer)])
        except Abandoned:
            pass
        except Exception as problem:  # of this job: the thread goes on
            self._send([failure(active.number, "model", _one_line(problem))])
        with self._lock:
            self._measuring.discard(active.number)

    def _with_effect(self, active: ActiveJob, answer: Answer) -> Update:
        number = active.number

        def check() -> None:
            if number not in self._measuring:
                raise Abandoned

        check()
        record = self._record(active, answer)
        cells = len(answer.logprobs) * len(answer.place_names)
        if cells > MAX_EFFECT_CELLS:
            reason = f"{cells:,} tokens x places are more than {MAX_EFFECT_CELLS:,}"
            record["effects_reason"] = f"effects were not measured: {reason}"
            return {"job": number, "finished": record}
        if not answer.tokens and active.before_stop.found:
            record["effects"] = []  # the answer begins with a stop string
            return {"job": number, "finished": record}
        subject = Subject(answer, bundle=self.bundle, row=active.row)
        effects = with_effect(subject, before_pass=check).effect
        record["effects"] = None if effects is None else _rounded(effects)
        return {"job": number, "finished": record}

    def _send(self, updates: list[Update]) -> None:
        """Report updates, in several frames if they are large: answers with weights over a long
        source have megabytes each, and many may end in one step."""
        self._rows_sent = self.engine.rows
        content = self._report_bytes(updates)
        if len(content) <= MAX_REPORT:
            self._send_bytes(content)
            return
        for group, size in groups(updates, MAX_REPORT):
            if size > MAX_UPDATE:  # the only one of its group
                group = [_too_large(group[0], size)]
            self._send_bytes(self._report_bytes(group))

    def _report_bytes(self, updates: list[Update]) -> bytes:
        return Frame({"updates": updates, "rows": self._rows_sent}).to_bytes()

    def _send_bytes(self, content: bytes) -> None:
        with (
            self._write_lock,
            contextlib.suppress(OSError),
        ):  # the web process has ended: so does `run`
            self._connection.sendall(content)

    def send_description(self, name: str, run: Path) -> None:
        frame = Frame({"ready": description(self.bundle, name, run)})
        with self._write_lock:
            self._connection.sendall(frame.to_bytes())


def _too_large(update: Update, size: int) -> Update:
    """What is reported instead of an update that is too large."""
    message = f"the answer has {size / MB:,.0f} MB, and may have {MAX_UPDATE / MB:,.0f}"
    hint = "ask for fewer tokens, or without attention, alternatives and effects"
    return failure(update["job"], "input", f"{message}: {hint}")


def answer_record(answer: Answer, job: Job) -> dict[str, Any]:
    """An answer as the API has it."""
    weights = None
    if job.attention and answer.weights is not None:
        weights = _rounded(answer.weights.mean(1))
    alternatives = None
    if job.alternatives and answer.alternatives is not None:
        alternatives = [
            [_alternative_record(alternative, job) for alternative in step]
            for step in answer.alternatives
        ]
    return {
        "text": answer.text,
        "finish": answer.finish,
        "retrieved": answer.retrieved,
        "score": _number(answer.score) if job.logprobs else None,
        "tokens": list(answer.tokens),
        "pieces": list(answer.pieces),
        "logprobs": [_number(logprob) for logprob in answer.logprobs] if job.logprobs else [],
        "step_names": list(answer.step_names),
        "place_names": list(answer.place_names) if job.attention or job.effect else [],
        "grid": None if answer.grid is None else list(answer.grid),
        "weights": weights,
        "alternatives": alternatives,
        "effects": None,
    }


def description(bundle: Bundle, name: str, run: Path) -> dict[str, Any]:
    """What the web process says about a model."""
    source = bundle.task.source
    kind = "text"
    if isinstance(source, PictureSource):
        kind = "picture"
    elif isinstance(source, SoundSource):
        kind = "sound"
    labels = getattr(bundle.tokenizer, "labels", None)
    return {
        "name": name,
        "task": bundle.recipe.task,
        "input": kind,
        "turns": getattr(source, "turns", None) or 1 if source.reads_history else 0,
        "attends": bundle.attends(),
        "parameters": bundle.model.parameter_count,
        "summary": bundle.recipe.summary,
        "options": dict(bundle.options),
        "rate": source.rate if isinstance(source, SoundSource) else None,
        "size": list(source.size) if isinstance(source, PictureSource) else None,
        "labels": None if labels is None else list(labels),
        "vocabulary": bundle.tokenizer.size,
        "max_source": getattr(source, "max_source", None),
        "places": most_places(bundle),
        "reads_characters": isinstance(bundle.tokenizer, Characters),
        "examples": examples.texts(run) if kind == "text" else examples.files(run),
    }


def most_places(bundle: Bundle) -> int | None:
    """The places of the largest picture or the longest sound; None: it reads texts."""
    source = bundle.task.source
    if isinstance(source, SoundSource):
        return math.ceil(source.max_seconds / source.seconds_a_place)
    grid = bundle.model.frontend.grid
    return None if grid is None else math.prod(grid)


def _alternative_record(alternative: Alternative, job: Job) -> dict[str, Any]:
    token, text, probability = alternative
    record: dict[str, Any] = {"token": token, "text": text}
    if job.exact:
        return record | {"logprob": _number(math.log(probability)) if probability else None}
    # A model that fails may say that a token has no probability; that is no number of JSON.
    known = round(probability, DIGITS) if math.isfinite(probability) else None
    return record | {"probability": known}


def _rounded(values: torch.Tensor | np.ndarray) -> list[Any]:
    array = values.float().cpu().numpy() if isinstance(values, torch.Tensor) else values
    # Of float64: a rounded float32 is printed with digits that it does not have.
    return np.nan_to_num(array.astype(np.float64)).round(DIGITS).tolist()


def _is_short(source: str | Turns | None) -> bool:
    """Whether an input is a text that is read in less time than a step takes."""
    if source is None:
        return False
    texts = [source] if isinstance(source, str) else [turn["content"] for turn in source]
    return sum(len(text) for text in texts) <= SHORT_TEXT


def _number(value: float) -> float | None:
    return round(value, 6) if math.isfinite(value) else None


def _one_line(problem: Exception) -> str:
    text = str(problem).strip().partition("\n")[0][:300]
    return text if isinstance(problem, RegardError) else f"{type(problem).__name__}: {text}"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--socket", type=int, required=True)
    parser.add_argument("--run", type=Path, required=True)
    parser.add_argument("--name", required=True)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rows", type=int, required=True)
    args = parser.parse_args()

    # The web process decides when to stop, and closes the socket. A supervisor may signal all
    # processes of a service at once, and answers under way must not end with that.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    torch.set_num_threads(args.threads)
    connection = socket.socket(fileno=args.socket)
    try:
        bundle = bundles.load(args.run, device=args.device)
        process = EngineProcess(bundle, connection, max_rows=args.rows)
        process.send_description(args.name, args.run)
    except RegardError as problem:
        connection.sendall(Frame({"unusable": str(problem)}).to_bytes())
        sys.exit(2)
    except BrokenPipeError:  # the web process has ended meanwhile
        sys.exit(0)
    process.run()


if __name__ == "__main__":
    main()
