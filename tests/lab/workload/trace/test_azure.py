"""Azure's arrivals and lengths."""

from lab.workload.trace.azure import AZURE
from tests.lab.workload.trace.made import imported, table

ROWS = (
    ("TIMESTAMP", "ContextTokens", "GeneratedTokens"),
    ("2023-11-16 18:15:46.6805900", 374, 44),
    ("2023-11-16 18:15:50.9951690", 396, 109),
    ("2023-11-16 18:15:50.0000000", 1, 2),
    ("2023-11-16 18:16:46.6805900", 10, 20),
)


def test_every_request_is_a_session():
    sessions = imported(AZURE, table(*ROWS))
    assert [(s.id, s.arrival_s) for s in sessions] == [
        ("corpus:2", 0.0),
        ("corpus:3", 4.314579),
        ("corpus:4", 4.314579),
        ("corpus:5", 60.0),
    ]
    turns = [s.threads[0].turns[0] for s in sessions]
    assert [(t.input_tokens, t.output_tokens) for t in turns] == [(374, 44), (396, 109), (1, 2), (10, 20)]
