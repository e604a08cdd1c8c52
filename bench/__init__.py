"""Benchmarks: `python -m bench.NAME` writes its record to `bench/results/NAME.json`."""
