"""Other implementations, written or called as is usual, to compare with."""
