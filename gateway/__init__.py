"""Turnpike: a transparent, session-aware gateway for fleets of LLM servers that run agents."""

__version__ = "0.1.0"
