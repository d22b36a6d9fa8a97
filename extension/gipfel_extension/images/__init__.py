"""Build container images as a plain user, with what they are made of, and signed."""
