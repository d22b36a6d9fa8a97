"""Build container images as a plain user, with a bill of materials, provenance and a signature."""
