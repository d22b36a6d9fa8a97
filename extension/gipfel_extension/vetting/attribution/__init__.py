"""Attribution: name the GPU, node, link or switch at fault, with its confidence."""
