"""A model on disk: raw input in, answer out, nothing else needed. No pickle on any path."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from regard import build, codecs, disk
from regard.codecs import Codec
from regard.errors import BundleError
from regard.model import Model
from regard.recipe import Recipe
from regard.resources import check_memory
from regard.search import Options, search, seeds_of, stream
from regard.tasks.task import Given, Task
from regard.values import Answer, Memory

RECIPE, CODEC, WEIGHTS = "recipe.json", "codec.json", "model.safetensors"


@dataclass(frozen=True)
class Bundle:
    """A trained model with its recipe and codec.

    >>> bundle = load(Path("runs/demo"))                                                        # doctest: +SKIP
    >>> bundle.ask(["What are you?"])[0].text                                                   # doctest: +SKIP
    'I am an artificial intelligence.'
    """

    recipe: Recipe
    codec: Codec
    task: Task
    model: Model

    @property
    def options(self) -> Options:
        return build.options(self.recipe.search)

    def ask(self, inputs: Sequence[Given], options: Options | None = None) -> list[Answer]:
        """One answer for each input, best first found. Where answers are drawn, each depends on its own input and on
        `options.seed` alone: asked twice, also in one call, the same input has the same answer."""
        return [found[0] for found in self.candidates(inputs, options)]

    @torch.inference_mode()
    def candidates(self, inputs: Sequence[Given], options: Options | None = None) -> list[list[Answer]]:
        """Every candidate of each input, best first."""
        options = options or self.options
        raw, mask = self.task.read(inputs)
        found = search(
            self.model.decoder,
            self.model.read(raw, mask),
            self.task.marks,
            options,
            prior=self._prior(options),
            rarity=self.model.rarity,
            seeds=seeds_of(options, _contents(raw, mask)),
        )
        return [
            [Answer(one.tokens, self.task.codec.decode(one.tokens), one.score, one.weights) for one in row]
            for row in found
        ]

    @torch.inference_mode()
    def stream(self, given: Given, options: Options | None = None) -> Iterator[str]:
        """The answer as it comes: pieces of text that add up to it."""
        options = options or self.options
        raw, mask = self.task.read([given])
        steps = stream(
            self.model.decoder,
            self.model.read(raw, mask),
            self.task.marks,
            options,
            prior=self._prior(options),
            rarity=self.model.rarity,
            seeds=seeds_of(options, _contents(raw, mask)),
        )
        tokens: list[int] = []
        shown = ""
        for token, _ in steps:
            tokens.append(token)
            text = self.task.codec.decode(tokens)
            yield text[len(shown) :]
            shown = text

    def _prior(self, options: Options) -> Memory | None:
        """The memory of an input that says nothing, on which the decoder is a language model of answers."""
        return self.model.read(*self.task.nothing()) if options.anti_prior else None


def _contents(raw: Tensor, mask: Tensor) -> list[bytes]:
    """What the model reads of each input, without the padding that its neighbours brought."""
    padded = raw.shape[:2] == mask.shape  # tokens and samples; pictures have one size
    rows = [row[real] if padded else row for row, real in zip(raw, mask, strict=True)]
    return [row.cpu().numpy().tobytes() for row in rows]


def tensors(model: Model) -> dict[str, Tensor]:
    """Every weight once, though it may have two names (tied embeddings), and the buffers that are saved."""
    kept = model.state_dict()
    named = dict(model.named_parameters()) | {name: b for name, b in model.named_buffers() if name in kept}
    return {name: tensor.detach().contiguous() for name, tensor in named.items()}


def load_tensors(model: Model, saved: dict[str, Tensor], where: object) -> None:
    own = tensors(model)
    if wrong := sorted(own.keys() ^ saved.keys()):
        raise BundleError("the weights are not those of this recipe", where=where, got=", ".join(wrong[:3]))
    for name, tensor in own.items():
        if tensor.shape != saved[name].shape:
            raise BundleError(
                f"{name} must have shape {tuple(tensor.shape)}", where=where, got=f"shape {tuple(saved[name].shape)}"
            )
        tensor.copy_(saved[name])


def read_tensors(path: Path) -> dict[str, Tensor]:
    try:
        return safetensors.torch.load(path.read_bytes())
    except FileNotFoundError:
        raise BundleError("a file is missing", where=path) from None
    except (SafetensorError, ValueError) as problem:
        raise BundleError("damaged: not a safetensors file", where=path, got=str(problem)[:120]) from None


def write_tensors(path: Path, content: dict[str, Tensor]) -> None:
    """A safetensors file that follows the umask; `save_file` would make one for its owner alone."""
    path.touch()
    mode = path.stat().st_mode
    safetensors.torch.save_file(content, path)
    path.chmod(mode)


def size(content: dict[str, Tensor]) -> int:
    """The bytes of all tensors; the names in the file's header are a few more."""
    return sum(tensor.nbytes for tensor in content.values())


def create(folder: Path, recipe: Recipe, codec: Codec) -> None:
    """Begin a run: what stays the same whatever the weights are. The manifest comes first, so that a folder that a kill
    left half-made is known to be ours."""
    disk.write_json(folder / disk.MANIFEST, {"format": disk.FORMAT, "files": {}})
    put_recipe(folder, recipe)
    text = codecs.dumps(codec)
    with disk.needs(len(text.encode())):
        disk.put(folder, CODEC, lambda draft: draft.write_text(text, "utf-8"))


def has_begun(folder: Path) -> bool:
    """Whether there is a run in this folder, all of `create` included."""
    needed = {RECIPE, CODEC}
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
    folder = Path(folder)
    if not folder.is_dir():
        raise BundleError("no such run", where=folder, hint="train one with: regard train chat-attention")
    if not (folder / disk.MANIFEST).exists():
        raise BundleError("not a run folder: it has no manifest.json", where=folder)
    if not (folder / WEIGHTS).exists():
        raise BundleError(
            "no weights yet: training had not reached its first validation",
            where=folder,
            hint=f"go on with: regard train --resume {folder}",
        )
    check_memory(2 * (folder / WEIGHTS).stat().st_size, "the weights of this run, read and in the model,")
    disk.verify(folder, RECIPE, CODEC, WEIGHTS)
    recipe = Recipe.from_json(disk.read_json(folder / RECIPE), folder / RECIPE)
    codec = codecs.read(folder / CODEC)
    model = build.model(recipe, vocabulary=codec.size, source_vocabulary=codec.source_size)
    load_tensors(model, read_tensors(folder / WEIGHTS), folder / WEIGHTS)
    return Bundle(recipe, codec, build.task(recipe, codec), model.eval())
