"""A trained model with its recipe and tokenizer, saved and loaded without pickle.

    bundle    the class `Bundle`: ask, stream, evaluate, budget
    inputs    what it is asked: texts, files, arrays, conversations
    options   the search options of a call
    answers   answers and pieces of answers, from what a search returns

Here are the files of a bundle in the folder of a run.
"""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path
from shlex import quote

import torch
from torch import Tensor

from regard import build, checkpoint, disk, tokenizers
from regard.bundle.answers import Stream as Stream
from regard.bundle.answers import Trace as Trace
from regard.bundle.bundle import Bundle as Bundle
from regard.bundle.bundle import recipe_budget as recipe_budget
from regard.bundle.inputs import Input as Input
from regard.bundle.inputs import Messages as Messages
from regard.bundle.inputs import Sound as Sound
from regard.bundle.inputs import Turns as Turns
from regard.bundle.options import check_greedy as check_greedy
from regard.bundle.options import greedy_recipe as greedy_recipe
from regard.device import resolve
from regard.errors import BundleError, InputError
from regard.recipe import Recipe
from regard.resources import check_memory
from regard.retrieval import Retrieval
from regard.tokenizers import Tokenizer
from regard.weights import TensorFiles, load_tensors, size, write_tensors

RECIPE, TOKENIZER, WEIGHTS = "recipe.json", "tokenizer.json", "model.safetensors"
RETRIEVAL = "retrieval.safetensors"  # only of runs that retrieve training answers
LOG = logging.getLogger("regard")


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


def put_retrieval(folder: Path, retrieval: Retrieval) -> None:
    content = retrieval.tensors()
    with disk.needs(size(content)):
        disk.put(folder, RETRIEVAL, lambda draft: write_tensors(draft, content))


def put_recipe(folder: Path, recipe: Recipe) -> None:
    text = json.dumps(recipe.to_json(), ensure_ascii=False, indent=1)
    disk.put(folder, RECIPE, lambda draft: draft.write_text(text + "\n", "utf-8"))


def load(folder: Path | str, *, device: str | torch.device = "auto") -> Bundle:
    """The model of a run's folder, ready to be asked. Every file is checked against its SHA-256 sum
    first.

    Its weights are those that a validation kept. A run that was stopped before its first validation
    has those of its newest checkpoint, and a warning of the logger "regard" says so.

    folder   a run's folder; or one of its checkpoints, runs/demo/checkpoints/step-000400
    device   "auto" (a GPU if there is one), "cpu", "cuda" or "mps", wherever it was trained
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
    device = resolve(device)
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
    weights = TensorFiles((folder / WEIGHTS,))
    if folder.resolve().parent.name == checkpoint.FOLDER:
        weights = checkpoint.weights_of(folder)
        folder = folder.resolve().parent.parent
        listed = disk.manifest(folder)
        disk.verify_files(folder, RECIPE, TOKENIZER, *listed.keys() & {RETRIEVAL})
        saved = _read_weights(weights)
    elif (folder / WEIGHTS).exists():
        disk.verify(folder, RECIPE, TOKENIZER, WEIGHTS)
        saved = _read_weights(weights)
    else:
        weights, saved = _checkpoint_weights(folder)
    recipe = Recipe.from_json(disk.read_json(folder / RECIPE), folder / RECIPE)
    tokenizer = tokenizers.read(folder / TOKENIZER)
    model = build.model(recipe, vocabulary=tokenizer.size, source_vocabulary=tokenizer.source_size)
    load_tensors(model, saved, weights)
    retrieval = None
    if RETRIEVAL in disk.manifest(folder):
        retrieval = Retrieval.read(folder / RETRIEVAL, tokenizer)
    return Bundle(recipe, build.task(recipe, tokenizer), model.to(device).eval(), retrieval)


def _read_weights(files: TensorFiles) -> dict[str, Tensor]:
    check_memory(2 * files.size, "the weights of this run, read and in the model,")
    return files.read()


def _checkpoint_weights(folder: Path) -> tuple[TensorFiles, dict[str, Tensor]]:
    """The weights of the newest checkpoint, of a run that has kept none yet; a warning says so."""
    again = f"regard train --resume {quote(str(folder))}"
    if WEIGHTS in disk.manifest(folder):
        hint = f"restore it from a checkpoint with: {again}"
        raise BundleError("a file is missing", where=folder / WEIGHTS, hint=hint)
    disk.verify(folder, RECIPE, TOKENIZER)
    newest = checkpoint.newest_weights(folder, LOG.warning)
    if newest is None:
        raise BundleError(
            "no weights yet: neither a validation nor a checkpoint has saved any",
            where=folder,
            hint=f"train it with: {again} --minutes 1",
        )
    files, step = newest
    try:
        saved = _read_weights(files)
    except BundleError:
        if all(path.exists() for path in files.paths):
            raise
        return _checkpoint_weights(folder)  # a trainer has removed it, after it saved a newer one
    LOG.warning(
        "%s: not validated yet; using the weights of its checkpoint of step %s",
        folder,
        f"{step:,}",
    )
    return files, saved
