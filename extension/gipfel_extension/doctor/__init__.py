"""Probes of `gipfel doctor`: this machine, cluster, account and environment, and the fix for what is missing.

`examine.examine` asks every probe of `probes.PROBES` side by side, each within a time limit, about one
`machine.Machine`. A probe is a small function that returns a `finding.Finding`. `text` prints them.
"""
