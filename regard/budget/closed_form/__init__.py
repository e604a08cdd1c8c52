"""What layers and whole models cost, as formulas of their sizes. Needs no torch."""
