"""`regard serve`: models behind HTTP, with an API that existing clients speak, and a page."""
