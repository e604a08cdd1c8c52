"""report.html of a run under way: written at every validation, unless that would take long."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from regard import __version__, sessions
from regard.checkpoint import Progress
from regard.data.corpus import Corpus
from regard.pages.report import FILE, Draft
from regard.recipe import Recipe
from regard.sessions import Session, State
from regard.train.process import effective_threads

SHARE = 0.01  # of the time of a training that may be spent here


class ReportFile:
    """The report of a run under way, without what would take time to find out. Whatever goes wrong
    here is noted once, and training goes on."""

    def __init__(self, run: Path, recipe: Recipe, corpus: Corpus, noted: Callable[[str], None]):
        self.run = run
        self.recipe = recipe
        self.corpus = corpus
        self.noted = noted
        self.has_failed = False
        self.draft: Draft | None = None
        self.session: Session | None = None
        self.next_time = 0.0  # before which it is not written again

    def begin(self, *, base: str, command: str, device: str, step: int) -> None:
        """Record that training begins here and now."""
        with self._harmless():
            earlier = [session.base for session in sessions.read(self.run) if session.base]
            session = Session(
                base=base or "".join(earlier[:1]),
                command=command,
                device=device,
                threads=effective_threads(),
                seed=self.recipe.seed,
                first_step=step,
                torch=torch.__version__,
                regard=__version__,
            )
            self.session = sessions.begin(self.run, session)

    def write(self, progress: Progress, state: State) -> None:
        """Write the page as the run stands."""
        began = time.perf_counter()
        if state == "under way" and began < self.next_time:
            return
        with self._harmless():
            session = self.session
            if session is not None and state == "done" and progress.step == session.first_step:
                sessions.end(self.run, session, state, progress.step)
                return  # nothing was left to do: the page, which may say more, stays
            if state != "under way" and self.session is not None:
                sessions.end(self.run, self.session, state, progress.step)
            if self.draft is None:
                self.draft = Draft(self.run, self.recipe, self.corpus)
            self.draft.page(progress, state).save(self.run / FILE)
        ended = time.perf_counter()
        self.next_time = ended + (ended - began) / SHARE

    @contextlib.contextmanager
    def _harmless(self) -> Iterator[None]:
        try:
            yield
        except Exception as problem:  # a page is never worth a training
            if not self.has_failed:
                self.noted(f"the report is not written: {problem}")
            self.has_failed = True
