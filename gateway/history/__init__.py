"""Sessions, turns and decisions on disk, for who asks later; bounded by size and age."""
