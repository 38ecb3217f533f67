"""SQL over HTTP, as `@neondatabase/serverless` speaks it, and the WebSockets that carry the
Postgres protocol itself. `controlplane.proxy.session` hands over each connection that begins with
an HTTP method."""
