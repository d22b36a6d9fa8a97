"""How a server's time ends: what it reports, what it is told, who stops it."""
