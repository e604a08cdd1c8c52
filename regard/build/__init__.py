"""Build data, tokenizer, model and task of a recipe: the only place that maps names to objects."""

from regard.build.corpora import columns_taken, corpus, fit_tokenizer, other, with_tokenizer
from regard.build.corpora import opened as opened_corpus
from regard.build.models import SMALLER, model, weight_bytes
from regard.build.models import build_encoder as encoder
from regard.build.tasks import TASKS, task

__all__ = [
    "SMALLER",
    "TASKS",
    "columns_taken",
    "corpus",
    "encoder",
    "fit_tokenizer",
    "model",
    "opened_corpus",
    "other",
    "task",
    "weight_bytes",
    "with_tokenizer",
]
