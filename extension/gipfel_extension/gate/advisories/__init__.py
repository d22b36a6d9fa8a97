"""OSV advisories: read and update a local mirror, compare versions, and match advisories with packages."""
