"""Whether a client may connect: its password and its address."""
