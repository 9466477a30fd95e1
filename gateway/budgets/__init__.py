"""Budgets: how much a session, an agent type or a tenant may use, and calls that repeat."""
