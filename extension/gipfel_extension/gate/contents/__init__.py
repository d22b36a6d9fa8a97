"""Files of directories and images that endanger their users: permissions, secrets, ended support."""
