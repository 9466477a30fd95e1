"""Tenants: shares, quotas and bounds."""
