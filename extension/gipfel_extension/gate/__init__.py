"""The gate: models, notebooks and packages are judged before they are loaded; nothing of them is executed."""
