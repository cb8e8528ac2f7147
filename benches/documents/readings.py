"""Fields that were read off the picture for documents whose source has other fields only.

`truths/readings/` has a file for each part. A line completes a row of the truth; what the source says is kept, but for the fields in `instead`,
where the page plainly says something else. `without` names fields that the page does not have, so that any value is wrong.
"""
from pathlib import Path

from documents.rows import read_rows

READINGS = Path(__file__).resolve().parent / "truths" / "readings"


def complete(name, rows):
    """Adds what was read to the rows of the set NAME."""
    readings = [row for file in sorted(READINGS.glob("*.jsonl")) for row in read_rows(file)]
    by_file = {f"files/{reading['file']}": reading for reading in readings if reading["set"] == name}
    for row in rows:
        reading = by_file.get(row["file"], {"truth": {}})
        row["truth"] = {**reading["truth"], **row["truth"], **reading.get("instead", {})}
        row.update({key: reading[key] for key in ("number_also",) if key in reading})
        without = [field for field in reading.get("without", ()) if field not in row["truth"]]
        if without:
            row["without"] = without
