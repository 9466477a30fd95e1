"""Telemetry: where the information stream goes."""
