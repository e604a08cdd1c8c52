"""A trained model with its recipe and tokenizer, saved and loaded without pickle."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, overload

import numpy as np
import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from regard import build, disk, tokenizers
from regard.errors import BundleError, InputError, RecipeError, did_you_mean
from regard.model import Model
from regard.recipe import Recipe, SourceSound
from regard.resources import check_memory
from regard.search import Hypothesis, Options, search, seeds_of, stream
from regard.tasks.speech import needs_array, needs_rate
from regard.tasks.task import Task, is_sound
from regard.tokenizers import Tokenizer
from regard.values import Answer, Memory

if TYPE_CHECKING:
    from PIL.Image import Image

RECIPE, TOKENIZER, WEIGHTS = "recipe.json", "tokenizer.json", "model.safetensors"


Input: TypeAlias = (
    "str | os.PathLike[str] | np.ndarray | Tensor | Image | tuple[np.ndarray | Tensor, float]"
)


def _is_single(inputs: Any) -> bool:
    """Whether this is one input rather than several. A string is one input although it can be
    iterated over, and so is an array.

    >>> _is_single("Hello"), _is_single(["Hello"])
    (True, False)
    >>> _is_single(np.zeros((8, 8))), _is_single((np.zeros(8000), 8000))
    (True, True)
    """
    if isinstance(inputs, str | bytes | os.PathLike | np.ndarray | Tensor | Mapping):
        return True
    return is_sound(inputs) or not isinstance(inputs, Iterable)


def _unpadded(weights: Tensor | None, places: int) -> Tensor | None:
    return None if weights is None else weights[..., :places]


@dataclass(frozen=True)
class Bundle:
    """A trained model with its recipe and tokenizer. `regard.load(run)` makes one.
    >>> bot = regard.load("runs/demo")  # doctest: +SKIP
    >>> bot.ask("What are you?").text  # doctest: +SKIP
    'I am an artificial intelligence.'
    """

    recipe: Recipe
    tokenizer: Tokenizer
    task: Task
    model: Model

    @property
    def options(self) -> Options:
        """The default search options: the recipe's section [search]."""
        return self.recipe.search

    @overload
    def ask(
        self,
        inputs: Input,
        options: Options | None = None,
        *,
        rate: float | None = None,
        **changes: Any,
    ) -> Answer: ...

    @overload
    def ask(
        self,
        inputs: Iterable[Input],
        options: Options | None = None,
        *,
        rate: float | None = None,
        **changes: Any,
    ) -> list[Answer]: ...

    def ask(
        self,
        inputs: Input | Iterable[Input],
        options: Options | None = None,
        *,
        rate: float | None = None,
        **changes: Any,
    ) -> Answer | list[Answer]:
        """The answer to one input, or a list of the answers to several.

        inputs   one input, or a list of them. What an input is depends on the task:
                 text      a str (for the task `blank`, with ___ in the place of a word)
                 picture   the path of a file, a PIL image, or an array (h, w), (h, w, 1),
                           (h, w, 3) or (h, w, 4) of bytes or of floats from 0 to 1; each is
                           resized as the file of that picture would be
                 sound     the path of a file, or samples (n,) or (n, channels) with `rate=`,
                           or (samples, rate)
        options  all search options; by default the recipe's
        rate     samples a second, for arrays of samples
        changes  single search options, as in `num_beams=4`, on top of the recipe's;
                 `greedy=True` takes the likeliest token at each step

        An `Answer` has tokens, text, score and weights (T, H, S): token of the answer, head, place
        of the source. Where answers are drawn, each depends on its own input and on the option
        `seed` alone: asked twice, also in one call, the same input has the same answer.
        >>> bot.ask("Are you a robot?").text  # doctest: +SKIP
        'Yes I am.'
        >>> [answer.text for answer in bot.ask(["Hello!", "Are you a robot?"])]  # doctest: +SKIP
        ['Greetings!', 'Yes I am.']
        >>> likeliest = bot.ask("Hello!", num_beams=4)  # doctest: +SKIP
        >>> bot.ask("Are you a robot?").weights.shape  # doctest: +SKIP
        torch.Size([4, 1, 5])
        """
        single = _is_single(inputs)
        several: Any = [inputs] if single else inputs
        batch = self._input_list(several, rate)
        answers = [ranked[0] for ranked in self.candidates(batch, options, **changes)]
        return answers[0] if single else answers

    @torch.inference_mode()
    def candidates(
        self, inputs: Iterable[Input], options: Options | None = None, **changes: Any
    ) -> list[list[Answer]]:
        """For each of several inputs, every answer that the search finds, best first.
        >>> len(bot.candidates(["Hello!"], num_beams=5, candidates=5)[0])  # doctest: +SKIP
        5
        """
        options = self.search_options(options, **changes)
        if _is_single(inputs):
            raise InputError(
                "needs a list of inputs",
                where="candidates",
                got=f"one {type(inputs).__name__}",
                hint="put it in a list: candidates([input])",
            )
        batch = list(inputs)
        if not batch:
            return []

        raw, mask = self.task.read(batch)
        memory = self.model.read(raw, mask)
        hypotheses = search(
            self.model.decoder,
            memory,
            self.task.special_tokens,
            options,
            prior=self._prior(options),
            idf=self.model.idf,
            seeds=seeds_of(options, _contents(raw, mask)),
        )

        numbers = torch.arange(1, memory.mask.shape[1] + 1, device=memory.mask.device)
        places = (memory.mask * numbers).amax(1).tolist()  # of each source, without padding
        return [
            [self._answer(hypothesis, own_places) for hypothesis in ranked]
            for ranked, own_places in zip(hypotheses, places, strict=True)
        ]

    def _answer(self, hypothesis: Hypothesis, places: int) -> Answer:
        return Answer(
            hypothesis.tokens,
            self.task.tokenizer.decode(hypothesis.tokens),
            hypothesis.score,
            _unpadded(hypothesis.weights, places),
        )

    @torch.inference_mode()
    def stream(
        self,
        given: Input,
        options: Options | None = None,
        *,
        rate: float | None = None,
        **changes: Any,
    ) -> Iterator[str]:
        """The answer to one input as it comes: pieces of text that add up to it.
        >>> for piece in bot.stream("Tell me a joke", temperature=0.7):  # doctest: +SKIP
        ...     print(piece, end="", flush=True)
        """
        options = self.search_options(options, **changes)
        raw, mask = self.task.read(self._input_list([given], rate))
        steps = stream(
            self.model.decoder,
            self.model.read(raw, mask),
            self.task.special_tokens,
            options,
            prior=self._prior(options),
            idf=self.model.idf,
            seeds=seeds_of(options, _contents(raw, mask)),
        )
        tokens: list[int] = []
        length = 0  # of the text that was already yielded
        for token, *_ in steps:
            tokens.append(token)
            text = self.task.tokenizer.decode(tokens)
            yield text[length:]
            length = len(text)

    def search_options(
        self, options: Options | None = None, *, greedy: bool = False, **changes: Any
    ) -> Options:
        """The recipe's search options with some of them changed.

        As on the command line, `num_beams` turns sampling off, and `greedy=True` drops what the
        recipe says about the search except `max_new_tokens`. `seed=None` draws anew at every call.

        >>> bot.search_options(num_beams=4).do_sample  # doctest: +SKIP
        False
        """
        if options is not None and not isinstance(options, Options):
            raise InputError(
                "options must be regard.Options",
                where="ask",
                got=type(options).__name__,
                hint="give single search options by name: ask(input, num_beams=2)",
            )
        if not changes and not greedy:
            return options or self.options
        if options is not None:
            names = [*(["greedy"] if greedy else []), *changes]
            raise InputError(
                "give options or single search options, not both",
                where="ask",
                got=", ".join(names),
            )

        section = {}
        for name, value in changes.items():
            if name not in Options.model_fields:
                raise InputError(
                    "no such search option",
                    where="ask",
                    got=name,
                    hint=did_you_mean(name, [*Options.model_fields, "greedy"]),
                )
            if value is not None:
                section[name] = value.item() if isinstance(value, np.generic) else value
        if "num_beams" in section:  # a beam search draws nothing
            section = {"do_sample": False, "candidates": 1} | section

        recipe = greedy_recipe(self.recipe) if greedy else self.recipe
        try:
            chosen = recipe.replaced({"search": section}, "ask").search
        except RecipeError as problem:
            raise InputError(str(problem)) from None
        if greedy:
            check_greedy(chosen, "greedy=True")
        draws_anew = "seed" in changes and changes["seed"] is None
        return chosen.replaced(seed=None) if draws_anew else chosen

    def _input_list(self, inputs: Iterable[Any], rate: float | None) -> list[Input]:
        """Inputs as a list, in which arrays of samples have their rate."""
        batch = list(inputs)
        source = self.recipe.source
        if not isinstance(source, SourceSound):
            if rate is not None:
                raise InputError(
                    "rate is for sounds, and this model reads none", where="ask", got=f"rate={rate}"
                )
            return batch

        if rate is not None and (
            isinstance(rate, bool) or not isinstance(rate, int | float | np.integer | np.floating)
        ):
            raise InputError(
                "rate must be a number, the samples a second",
                where="ask",
                got=f"rate={rate!r}",
                hint=f"as in rate={source.rate}",
            )
        sounds = []
        for sound in batch:
            if isinstance(sound, np.ndarray | Tensor):
                if rate is None:
                    raise needs_rate(sound, source.rate)
                sound = (sound, rate)
            elif isinstance(sound, int | float | np.number | list):
                if len(batch) > 1 or rate is not None or isinstance(sound, list):
                    raise needs_array(sound, source.rate)
            elif rate is not None:
                raise InputError(
                    "rate is for arrays of samples: a file says its own",
                    where="ask",
                    got=f"rate={rate}",
                )
            sounds.append(sound)
        return sounds

    @torch.inference_mode()
    def attends(self) -> bool:
        """Whether answers come with attention weights, as one step of the decoder shows."""
        memory = self.model.read(*self.task.sources([self.task.source.example()]))
        state = self.model.decoder.start(memory)
        step = self.model.decoder.step(torch.tensor([self.task.special_tokens.start]), state)
        return step.weights is not None

    def _prior(self, options: Options) -> Memory | None:
        """The memory of an empty input, given which the decoder is a language model of answers."""
        return self.model.read(*self.task.nothing()) if options.mmi_weight else None


def greedy_recipe(recipe: Recipe) -> Recipe:
    """The recipe with a greedy search, of which only `max_new_tokens` is the recipe's own."""
    search = Options(max_new_tokens=recipe.search.max_new_tokens)
    return recipe.model_copy(update={"search": search})


def check_greedy(options: Options, where: str) -> None:
    """Refuse options that contradict a greedy search."""
    contradictions = []
    if options.num_beams > 1:
        contradictions.append(f"num_beams={options.num_beams}")
    if options.do_sample:
        contradictions.append("do_sample=true")
    if options.candidates > 1:
        contradictions.append(f"candidates={options.candidates}")
    if contradictions:
        raise InputError(
            "a greedy search has one beam and draws nothing",
            where=where,
            got=" and ".join(contradictions),
            hint="leave one of them out",
        )


def _contents(raw: Tensor, mask: Tensor) -> list[bytes]:
    """The bytes of each input as the model reads it, without padding."""
    padded = raw.shape[:2] == mask.shape  # tokens and samples; pictures have one size
    rows = [row[real] if padded else row for row, real in zip(raw, mask, strict=True)]
    return [row.cpu().numpy().tobytes() for row in rows]


def tensors(model: Model) -> dict[str, Tensor]:
    """The parameters and the persistent buffers. A weight with two names (tied embeddings) comes
    once."""
    persistent = model.state_dict()
    buffers = {name: buffer for name, buffer in model.named_buffers() if name in persistent}
    named = dict(model.named_parameters()) | buffers
    return {name: tensor.detach().contiguous() for name, tensor in named.items()}


def load_tensors(model: Model, saved: dict[str, Tensor], where: object) -> None:
    own = tensors(model)
    if wrong := sorted(own.keys() ^ saved.keys()):
        raise BundleError(
            "the weights are not those of this recipe", where=where, got=", ".join(wrong[:3])
        )
    for name, tensor in own.items():
        if tensor.shape != saved[name].shape:
            raise BundleError(
                f"{name} must have shape {tuple(tensor.shape)}",
                where=where,
                got=f"shape {tuple(saved[name].shape)}",
            )
        tensor.copy_(saved[name])


def read_tensors(path: Path) -> dict[str, Tensor]:
    try:
        return safetensors.torch.load(path.read_bytes())
    except FileNotFoundError:
        raise BundleError("a file is missing", where=path) from None
    except (SafetensorError, ValueError) as problem:
        raise BundleError(
            "damaged: not a safetensors file", where=path, got=str(problem)[:120]
        ) from None


def write_tensors(path: Path, content: dict[str, Tensor]) -> None:
    """A safetensors file that follows the umask; `save_file` would make one for its owner alone."""
    path.touch()
    mode = path.stat().st_mode
    safetensors.torch.save_file(content, path)
    path.chmod(mode)


def size(content: dict[str, Tensor]) -> int:
    """The bytes of all tensors; the names in the file's header are a few more."""
    return sum(tensor.nbytes for tensor in content.values())


def create(folder: Path, recipe: Recipe, tokenizer: Tokenizer) -> None:
    """Begin a run: what stays the same whatever the weights are. The manifest comes first, so
    that a folder that a kill left half-made is known to be ours."""
    disk.write_json(folder / disk.MANIFEST, {"format": disk.FORMAT, "files": {}})
    put_recipe(folder, recipe)
    text = tokenizers.dumps(tokenizer)
    with disk.needs(len(text.encode())):
        disk.put(folder, TOKENIZER, lambda draft: draft.write_text(text, "utf-8"))


def has_begun(folder: Path) -> bool:
    """Whether there is a run in this folder, all of `create` included."""
    needed = {RECIPE, TOKENIZER}
    listed = disk.manifest(folder) if (folder / disk.MANIFEST).exists() else {}
    return needed <= listed.keys() and all((folder / name).is_file() for name in needed)


def has_weights(folder: Path) -> bool:
    """Whether the weights of a run are there and are what was saved."""
    try:
        disk.verify_files(folder, WEIGHTS)
    except BundleError:
        return False
    return True


def put_weights(folder: Path, content: dict[str, Tensor]) -> None:
    with disk.needs(size(content)):
        disk.put(folder, WEIGHTS, lambda draft: write_tensors(draft, content))


def put_recipe(folder: Path, recipe: Recipe) -> None:
    text = json.dumps(recipe.to_json(), ensure_ascii=False, indent=1)
    disk.put(folder, RECIPE, lambda draft: draft.write_text(text + "\n", "utf-8"))


def load(folder: Path | str) -> Bundle:
    """The model of a run's folder, ready to be asked. Every file is checked against its SHA-256 sum
    first.
    >>> bot = regard.load("runs/demo")  # doctest: +SKIP
    >>> bot.ask("Are you a robot?").text  # doctest: +SKIP
    'Yes I am.'
    """
    if not isinstance(folder, str | os.PathLike) or not isinstance(os.fspath(folder), str):
        raise InputError(
            "needs the path of a run's folder",
            where="load",
            got=type(folder).__name__,
            hint='as in regard.load("runs/demo")',
        )
    folder = Path(folder)
    if not os.path.isdir(folder):  # Path.is_dir raises for a name that is too long
        name = str(folder)
        raise BundleError(
            "no such run",
            where=name if len(name) <= 200 else f"{name[:200]}…",
            hint="train one with: regard train chat-attention",
        )
    if not (folder / disk.MANIFEST).exists():
        raise BundleError("not a run folder: it has no manifest.json", where=folder)
    if not (folder / WEIGHTS).exists():
        raise BundleError(
            "no weights yet: training had not reached its first validation",
            where=folder,
            hint=f"go on with: regard train --resume {folder}",
        )
    check_memory(
        2 * (folder / WEIGHTS).stat().st_size, "the weights of this run, read and in the model,"
    )
    disk.verify(folder, RECIPE, TOKENIZER, WEIGHTS)
    recipe = Recipe.from_json(disk.read_json(folder / RECIPE), folder / RECIPE)
    tokenizer = tokenizers.read(folder / TOKENIZER)
    model = build.model(recipe, vocabulary=tokenizer.size, source_vocabulary=tokenizer.source_size)
    load_tensors(model, read_tensors(folder / WEIGHTS), folder / WEIGHTS)
    return Bundle(recipe, tokenizer, build.task(recipe, tokenizer), model.eval())
