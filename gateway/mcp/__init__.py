"""The Model Context Protocol: messages of agents and their tool servers, and what follows from them.

Source: specification 2025-11-25, https://modelcontextprotocol.io/specification/2025-11-25 (streamable HTTP).
"""
