"""What is compared with what, and the figures: `python -m bench.NAME` writes
`bench/results/NAME.json`."""
