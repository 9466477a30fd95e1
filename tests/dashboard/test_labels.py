"""Labels on bars fit, and are measured a few times only, however long they are."""

import json
import subprocess
from pathlib import Path

LABELS = Path(__file__).parents[2] / "gateway" / "dashboard" / "static" / "labels.js"
PROGRAM = """
import { fitted } from "file://%s";
let measured = 0;
const measure = (text) => { measured += 1; return text.length; };
const long = "x".repeat(1000000);
const found = [["bash", 4], ["bash", 3], ["bash", 1], [long, 100], [long, 1e9]].map(
  ([text, room]) => { measured = 0; return [fitted(text, room, measure), measured]; });
console.log(JSON.stringify(found));
"""


def test_labels_fit_and_are_measured_a_few_times():
    command = ["node", "--input-type=module", "-e", PROGRAM % LABELS]
    found = json.loads(subprocess.run(command, capture_output=True, check=True, timeout=60).stdout)
    assert [text for text, _ in found] == ["bash", "ba…", "", "x" * 99 + "…", "x" * 200 + "…"]
    assert max(times for _, times in found) <= 9
