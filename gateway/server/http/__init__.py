"""HTTP/1.1 with clients: sockets, TLS, parsing within limits, responses framed."""
