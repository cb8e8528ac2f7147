"""Writes the series of the evaluation of docs/unusual.md as CSV files: real ones that ship inside packages of PyPI, each
once as it is and once with one fault of each kind, and a simulated month of a box.

    pip install numpy pandas statsmodels aeon bokeh_sampledata pmdarima pvlib river vega_datasets
    python benches/anomaly/collect.py FOLDER

`FOLDER/series.csv` lists the files: name, kind of the fault, interval in ms, and the times of the fault. Each other file has
the columns time_ms and value; missing samples have no row. Which half a series belongs to is decided by the reader.
"""

import argparse
import csv
import importlib.util
import pathlib
import zlib

import numpy as np
import pandas as pd

HOUR = 3_600_000
START = 1_700_000_000_000 // (24 * HOUR) * 24 * HOUR
KINDS = ["spike", "dip", "level_shift", "trend", "spread", "stuck", "silence", "season_shift"]


def of_package(name, file):
    """A file that ships with a package, without importing the package."""
    return pathlib.Path(importlib.util.find_spec(name).submodule_search_locations[0]) / file


def real():
    """Yields (name, interval in ms, values, labels or None)."""
    for station, file in [("sandpoint", "703165TY.csv"), ("greensboro", "723170TYA.CSV")]:
        table = pd.read_csv(of_package("pvlib", "data/" + file), skiprows=1, low_memory=False)
        for name, column in [
            ("ghi", "GHI (W/m^2)"),
            ("temperature", "Dry-bulb (C)"),
            ("dew_point", "Dew-point (C)"),
            ("humidity", "RHum (%)"),
            ("pressure", "Pressure (mbar)"),
            ("wind", "Wspd (m/s)"),
        ]:
            yield f"{station}_{name}", HOUR, table[column].to_numpy(float), None
    table = pd.read_csv(of_package("pvlib", "data/soiling_hsu_example_inputs.csv"))
    for column in ["rain", "PM2_5", "PM10"]:
        yield f"soiling_{column.lower()}", HOUR, table[column].to_numpy(float), None
    for city in ["seattle", "sf"]:
        table = pd.read_csv(of_package("vega_datasets", f"_data/{city}-temps.csv"))
        yield f"{city}_temps", HOUR, table["temp"].to_numpy(float), None
    table = pd.read_csv(of_package("bokeh_sampledata", "_data/CGM.csv.gz"))
    for part in range(3):
        rows = table.iloc[part * 15_000 : part * 15_000 + 8_000]
        for column in ["glucose", "isig"]:
            yield f"cgm_{column}_{part}", HOUR // 12, rows[column].to_numpy(float), None
    table = pd.read_csv(of_package("bokeh_sampledata", "_data/sea_surface_temperature.csv.gz"))
    yield "sea_surface", HOUR // 2, table["temperature (celsius)"].to_numpy(float), None
    from pmdarima.datasets import load_taylor

    yield "taylor_load", HOUR // 2, np.asarray(load_taylor(), float), None
    table = pd.read_csv(of_package("river", "datasets/water-flow.csv"))
    yield "water_flow", HOUR, table.iloc[:, 1].to_numpy(float), None
    table = pd.read_csv(of_package("aeon", "datasets/data/segmentation/ElectricDevices.csv"), header=None)
    yield "electric_devices", HOUR // 60, table.iloc[:, 1].to_numpy(float), None

    # Labelled by their makers.
    table = pd.read_csv(of_package("aeon", "datasets/data/KDD-TSAD_135/135_UCR_Anomaly_InternalBleeding16_TEST.csv"))
    yield "ucr_135", HOUR // 60, table["value"].to_numpy(float), table["is_anomaly"].to_numpy(int)
    table = pd.read_csv(of_package("aeon", "datasets/data/UnitTest/ecg-diff-count-3_TEST.csv"))
    yield "ecg_diff_count_3", HOUR // 60, table["value-0"].to_numpy(float), table["is_anomaly"].to_numpy(int)


def simulated(seed, days, interval):
    """A month of a box: yields (name, values)."""
    rng = np.random.default_rng(seed)
    n = days * 24 * HOUR // interval
    hours = np.arange(n) * interval / HOUR
    day = np.maximum(0, np.sin((hours % 24 - 7) / 14 * np.pi)) * (hours % 24 > 7) * (hours % 24 < 21)
    work = np.where((hours // 24) % 7 < 5, 1.0, 0.3)

    def autoregressive(share, size):
        noise = rng.normal(0, size * np.sqrt(1 - share**2), n)
        out = np.empty(n)
        value = 0.0
        for at in range(n):
            value = share * value + noise[at]
            out[at] = value
        return out

    calls = rng.poisson(np.maximum(0.2, 40 * day * work + 2 + autoregressive(0.95, 2)))
    memory = 3.2e9 + autoregressive(0.98, 1.5e7) + 6e7 * day * work + rng.normal(0, 4e6, n)
    cache = 2.0e8 * (1 - np.exp(-(hours % 168) / 30))
    logs = (hours % 24) / 24 * 2e9
    yield "memory", memory
    yield "memory_with_cache", memory + cache
    yield "disk_free_rotated", 8e10 - logs + autoregressive(0.9, 2e7)
    yield "temperature", 45 + 8 * day * work + autoregressive(0.97, 1.0) + rng.normal(0, 0.3, n)
    yield "calls", calls
    yield "failures", np.where(rng.random(n) < 0.01, rng.poisson(1.5, n), 0)
    yield "p99_ms", 12 + 5 * day * work + rng.gamma(2.0, 2.0, n) + (rng.random(n) < 0.003) * rng.pareto(2.0, n) * 30
    yield "other_cores", np.clip(0.3 + autoregressive(0.9, 0.1) + (hours % 24 < 0.5) * 1.5, 0, 4)
    yield "queue", np.maximum(0, np.round(autoregressive(0.8, 1.0) + 2 * day * work - 1))
    yield "share_of_errors", np.clip(rng.beta(0.5, 60, n), 0, 1)


def units(values, per_day):
    """Spread of a series about its median by the time of the day, and whether that explains much."""
    slots = np.arange(len(values)) % max(1, int(per_day))
    medians = pd.Series(values).groupby(slots).transform("median").to_numpy() if per_day >= 12 else np.median(values)
    rest = values - medians
    spread = 1.4826 * np.median(np.abs(rest - np.median(rest)))
    steps = 1.4826 * np.median(np.abs(np.diff(values)))
    total = values.std()
    return max(spread, steps, 0.3 * total, 1e-9), per_day >= 12 and rest.std() < 0.7 * total


def inject(kind, values, interval, rng):
    """Returns values with a fault, a mask of the samples that exist, and the first and last sample of the fault."""
    n, per_day = len(values), 24 * HOUR / interval
    unit, has_season = units(values, per_day)
    begin = int(n * rng.uniform(0.6, 0.8))
    out, exists = values.astype(float).copy(), np.ones(n, bool)
    lasting = int(np.clip(per_day, 48, 720))
    sign = rng.choice([-1, 1])
    if kind in ("spike", "dip"):
        end = begin + int(rng.integers(1, 4))
        out[begin:end] += (6 if kind == "spike" else -6) * unit
    elif kind == "level_shift":
        end = min(n, begin + lasting)
        out[begin:end] += 4 * sign * unit
    elif kind == "trend":
        end = min(n, begin + 2 * lasting)
        out[begin:end] += np.linspace(0, 10, end - begin) * sign * unit
    elif kind == "spread":
        end = min(n, begin + 96)
        out[begin:end] += rng.normal(0, 3 * unit, end - begin)
    elif kind == "stuck":
        # At night nothing changes in some series, so that nothing is wrong.
        moving = [at for at in range(begin, n - 80) if len(np.unique(values[at : at + 64])) > 32]
        if not moving:
            return None
        begin = moving[0]
        end = begin + 64
        out[begin:end] = out[begin]
    elif kind == "silence":
        end = min(n - 2, begin + 48)
        exists[begin:end] = False
    elif kind == "season_shift":
        if not has_season:
            return None
        end = min(n, begin + int(2 * per_day))
        out[begin:end] = np.roll(values, int(per_day / 2))[begin:end]
    whole = np.all(values == np.round(values))
    if whole:
        out = np.round(out)
    if values.min() >= 0:
        out = np.maximum(out, 0)
    if kind == "dip" and np.abs(out - values).max() < 3 * unit:
        return None
    return out, exists, begin, end


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--seeds", type=int, default=2, help="simulated boxes")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    rows = []

    def write(name, kind, interval, values, exists, spans):
        file = f"{name}.{kind}.csv"
        times = START + np.arange(len(values), dtype=np.int64) * interval
        table = pd.DataFrame({"time_ms": times, "value": values})[exists & np.isfinite(values)]
        table.to_csv(arguments.folder / file, index=False, float_format="%.8g")
        faults = ";".join(f"{START + begin * interval}-{START + (end - 1) * interval}" for begin, end in spans)
        rows.append([file, name, kind, interval, faults])

    def with_faults(name, interval, values):
        if values.std() == 0:
            return
        for kind in KINDS:
            rng = np.random.default_rng(zlib.crc32(f"{name} {kind}".encode()))
            if (found := inject(kind, values, interval, rng)) is not None:
                out, exists, begin, end = found
                write(name, kind, interval, out, exists, [(begin, end)])

    for name, interval, values, labels in real():
        values = pd.Series(values).ffill().bfill().to_numpy()
        if labels is not None:
            edges = np.flatnonzero(np.diff(np.concatenate([[0], labels, [0]])))
            write(name, "labelled", interval, values, np.ones(len(values), bool), list(edges.reshape(-1, 2)))
            continue
        write(name, "none", interval, values, np.ones(len(values), bool), [])
        with_faults(name, interval, values)
    for seed in range(arguments.seeds):
        for name, values in simulated(seed, 30, HOUR // 60):
            name = f"box{seed}_{name}"
            write(name, "none", HOUR // 60, np.asarray(values, float), np.ones(len(values), bool), [])
            with_faults(name, HOUR // 60, np.asarray(values, float)[: 14 * 1440])
        n = 14 * 1440
        leak = np.zeros(n)
        leak[10 * 1440 :] = np.arange(n - 10 * 1440) * 1e6
        memory = dict(simulated(seed, 14, HOUR // 60))["memory"] + leak
        write(f"box{seed}_memory", "leak_1mb_a_minute", HOUR // 60, memory, np.ones(n, bool), [(10 * 1440, n)])

    with open(arguments.folder / "series.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["file", "name", "kind", "interval_ms", "faults"])
        writer.writerows(rows)


main()
