"""Topology of a job: switches, nodes, NUMA nodes, GPUs and NICs, and the links between them."""
