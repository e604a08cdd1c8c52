"""A few inputs of a run's own data, as files: to look at, to listen to, and to ask about.

regard ask runs/caption-attention runs/caption-attention/examples/1.png
"""

from __future__ import annotations

from pathlib import Path

from regard import disk
from regard.data.corpus import Corpus
from regard.evaluate import questions
from regard.runs import EXAMPLES
from regard.tasks.task import Task

COUNT = 4


def write_examples(run: Path, task: Task, corpus: Corpus) -> None:
    """Held-out examples, if there are any. Texts need no files: each validation records some."""
    folder = run / EXAMPLES
    if corpus.train.form.is_text or folder.exists():
        return
    chosen = questions(corpus.valid if len(corpus.valid) else corpus.train, task, at_most=COUNT)
    files = [task.source.as_file(question.given) for question in chosen]

    def write(draft: Path) -> None:
        for number, (ending, content) in enumerate(filter(None, files), start=1):
            (draft / f"{number}{ending}").write_bytes(content)

    disk.write_folder(folder, write)
