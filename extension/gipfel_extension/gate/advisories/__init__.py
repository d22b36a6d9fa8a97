"""Advisories of OSV: a local mirror, versions in the order of their scheme, and matching."""
