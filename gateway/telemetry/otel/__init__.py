"""OpenTelemetry: spans from records, on their way to a collector."""
