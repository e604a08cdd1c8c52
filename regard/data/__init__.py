"""Corpora: readers stream examples, the cache keeps them as numbers on disk, batches say what
goes together."""
