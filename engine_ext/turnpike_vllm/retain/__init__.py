"""KV that stays for a paused session: which, how long, and on which blocks."""
