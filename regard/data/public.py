"""Public data sets: where they are, and what a download of them must be."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Download:
    """One file to download."""

    name: str  # here, whatever it is called there
    address: str
    size: int  # bytes
    exact: bool = True  # False: the size is an estimate
    sum: str | None = None  # "sha256:…" or "md5:…", from its publisher or from several who had it

    @property
    def most(self) -> int:
        """Bytes after which it cannot be the right file any more."""
        return self.size if self.exact else 2 * self.size


@dataclass(frozen=True)
class PublicDataSet:
    """A data set that can be downloaded: its files, and what an archive of it holds."""

    name: str
    what: str
    licence: str
    downloads: tuple[Download, ...]
    needs: tuple[str, ...]  # files without which it is not this data set
    keep: tuple[str, ...] = ()  # patterns of the archive's files to keep; none: it is no archive
    inside: str = ""  # the folder in the archive
    archives: tuple[str, ...] = ()  # archives in the archive, with more of the files to keep
    size: int = 0  # unpacked, in bytes
    members: int = 0  # of the archive
    wants: str = ""  # what it cannot be used without, and does not bring

    @property
    def bytes(self) -> int:
        return sum(download.size for download in self.downloads)

    @property
    def address(self) -> str:
        """Of the file, or of the folder that holds the files."""
        first = self.downloads[0].address
        return first if len(self.downloads) == 1 else first.rsplit("/", 1)[0] + "/"
