"""Request handlers that Gipfel adds to the hub: of servers, of the form, and of administrators."""
