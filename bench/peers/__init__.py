"""The others, as people usually write or call them."""
