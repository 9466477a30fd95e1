"""The Model Context Protocol: what agents and their tool servers say to each other, and what to make of it.

Source: specification 2025-11-25, https://modelcontextprotocol.io/specification/2025-11-25 (streamable HTTP).
"""
