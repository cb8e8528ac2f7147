"""Rows of tables as whole numbers make them: the same ones here and in `tests/it/table_rows.rs`.

A column has `low`, `high` and `decimals`: its numbers are whole numbers between the two, divided by a power of ten. Or it has `names`. A cell
is missing in 5 of 100 where the column has `missing`, and one of `extremes` in 20 of 100 of the last tenth of the rows.
"""
ROWS = 1000
MASK = (1 << 64) - 1


def numbers():
    """SplitMix64 from 0."""
    state = 0
    while True:
        state = (state + 0x9E3779B97F4A7C15) & MASK
        mixed = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & MASK
        yield mixed ^ (mixed >> 31)


def cell(column, row, kind, number):
    if column.get("missing") and kind < 5:
        return None
    extremes = column.get("extremes")
    if extremes and kind >= 80 and row >= ROWS - ROWS // 10:
        return extremes[number % len(extremes)]
    if "names" in column:
        return column["names"][number % len(column["names"])]
    whole = column["low"] + number % (column["high"] - column["low"] + 1)
    return whole / 10 ** column["decimals"] if column["decimals"] else whole


def rows(columns):
    source = numbers()
    return [[cell(column, row, next(source) % 100, next(source)) for column in columns] for row in range(ROWS)]
