"""Which GPU, node or link is to blame: pair rounds, comparison with the allocation, verdicts and how sure."""
