"""The scopes of the registry, as ``c.JupyterHub.custom_scopes`` takes them."""

READ = "custom:gipfel-registry:read"
WRITE = "custom:gipfel-registry:write"
VOUCH = "custom:gipfel-registry:vouch"
OPERATE = "custom:gipfel-registry:operate"

#: For ``c.JupyterHub.custom_scopes``.
SCOPES = {
    READ: {"description": "Read vetting results of all nodes, and who sent them"},
    WRITE: {
        "description": "Send vetting results of one's own jobs, take them back, and ask for usual figures"
    },
    VOUCH: {
        "description": "Send vetting results that are enough alone for a rule of recovery",
        "subscopes": [WRITE],
    },
    OPERATE: {
        "description": "Decide on steps of recovery, such as draining a node",
        "subscopes": [READ, WRITE],
    },
}
