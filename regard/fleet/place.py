"""The folder in which a task works.

If its machine has the driver's folder (a shared file system, or the driver's own machine), the task
works there, so that another machine can go on with a run whose machine died. The driver puts a
file with a secret into the folder; whoever can read it has the same folder and not one of the same
name. Otherwise the task works in a temporary folder, and its files are returned.
"""

from __future__ import annotations

import contextlib
import secrets
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from regard import disk
from regard.errors import BundleError, InputError

LIMIT = 1 << 30  # bytes that a task returns at most
CHECKPOINTS = "checkpoints"
LAST = (disk.MANIFEST, "result.json")  # files that say that others are complete


@dataclass(frozen=True)
class Proof:
    """A file in the driver's folder, and what is in it."""

    file: str
    secret: str

    @property
    def is_here(self) -> bool:
        try:
            return Path(self.file).read_text("utf-8") == self.secret
        except (OSError, UnicodeDecodeError):
            return False


@contextlib.contextmanager
def proof_in(folder: Path) -> Iterator[Proof]:
    """A proof while tasks are under way."""
    folder.mkdir(parents=True, exist_ok=True)
    proof = Proof(str(disk.draft_of(folder / "fleet")), secrets.token_hex(16))
    disk.write_text(Path(proof.file), proof.secret)
    try:
        yield proof
    finally:
        Path(proof.file).unlink(missing_ok=True)


@contextlib.contextmanager
def place_of(folder: str, proof: Proof) -> Iterator[tuple[Path, bool]]:
    """The folder of a task, and whether it is the driver's."""
    if proof.is_here:
        yield Path(folder), True
        return
    with tempfile.TemporaryDirectory(prefix="regard-fleet-") as own:
        yield Path(own), False


def pack(folder: Path, limit: int = LIMIT) -> dict[str, bytes]:
    """The files below a folder. Checkpoints are left out if they make it too large."""
    files = {}
    for file in sorted(folder.rglob("*")):
        if file.is_file() and not file.name.startswith(".") and file.suffix != ".lock":
            files[file.relative_to(folder).as_posix()] = file
    sizes = {name: file.stat().st_size for name, file in files.items()}
    if sum(sizes.values()) > limit:
        sizes = {name: size for name, size in sizes.items() if CHECKPOINTS not in name.split("/")}
    if sum(sizes.values()) > limit:
        raise InputError(
            f"the files of a run are larger than the {limit:,} bytes that a task returns",
            got=f"{sum(sizes.values()):,} bytes",
            hint="give --out a folder that all machines of the cluster share",
        )
    return {name: files[name].read_bytes() for name in sizes}


def unpack(files: dict[str, bytes], folder: Path) -> None:
    """Write the files that a task returned, those that vouch for others last."""
    for name in sorted(files, key=lambda name: PurePosixPath(name).name in LAST):
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts:
            raise BundleError("a task returned a file outside of its folder", got=name)
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        disk.write_bytes(target, files[name])
