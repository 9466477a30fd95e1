"""MCP servers behind the gateway."""
