"""Workloads without content: what a scheduler needs to know of sessions, recorded or composed.

Lengths, prefix structure, tools and pauses, never text. docs/contribute/workloads.md describes the file.
"""
