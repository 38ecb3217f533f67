"""The connection to a client's compute, and passing bytes between them."""
