"""SQL over HTTP, as `@neondatabase/serverless` uses it, and WebSockets that carry the Postgres
protocol. `sessions.session` passes on each connection that begins with an HTTP method or
has agreed on HTTP by ALPN."""
