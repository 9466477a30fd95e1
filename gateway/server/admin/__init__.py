"""The control plane: its API, who may use it, settings that change, files that settings name."""
