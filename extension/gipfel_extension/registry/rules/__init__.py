"""The rules catalogue: patterns over results, and what is to be done about them, in order."""
