"""What a connection consists of: its socket, TLS, and the messages of the Postgres protocol."""
