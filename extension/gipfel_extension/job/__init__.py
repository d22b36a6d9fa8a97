"""A job over all ranks: who they are, where they run, and figures of all of them."""
