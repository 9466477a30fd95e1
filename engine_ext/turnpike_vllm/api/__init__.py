"""The API server's side: doctor, gauges, keys."""
