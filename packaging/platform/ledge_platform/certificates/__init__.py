"""The certificates of boxes, servers and the platform, and the authority that issues them."""
