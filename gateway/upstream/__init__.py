"""Upstream: HTTP connections to replicas, and how their health and abilities are found out."""
