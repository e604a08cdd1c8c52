"""The only place where the names in a recipe become objects."""

from regard.build.corpora import cache_folder, columns_taken, corpus, fit_tokenizer, other
from regard.build.models import SMALLER, encoder, model, weight_bytes
from regard.build.tasks import TASKS, options, task

__all__ = [
    "SMALLER",
    "TASKS",
    "cache_folder",
    "columns_taken",
    "corpus",
    "encoder",
    "fit_tokenizer",
    "model",
    "options",
    "other",
    "task",
    "weight_bytes",
]
