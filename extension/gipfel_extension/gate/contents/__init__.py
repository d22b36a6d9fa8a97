"""Files of directories and images that endanger whoever uses them: permissions, secrets, ended support."""
