#!/usr/bin/env python3
"""Trains the pipeline and writes trees.json and golden/rows.json. Run once; its results are committed.

usage: train.py ISLP.whl | HOURS.csv      in an environment of its own with:
    pip install numpy==2.4.6 scikit-learn==1.9.1 skl2onnx==1.20.0 pandas onnxruntime; pip download --no-deps ISLP==0.6.0

The data are the hours of 2011 of Capital Bikeshare in Washington, which the package ISLP ships. A CSV of your own has the columns of the
model, `bikes`, and a `day`, which is any name for the day of the hour. A quarter of the days is held out.
"""
import io
import json
import sys
import zipfile
from pathlib import Path

import numpy as np
import onnxruntime
import pandas as pd
from skl2onnx import to_onnx
from skl2onnx.common.data_types import BooleanTensorType, FloatTensorType, Int64TensorType, StringTensorType
from sklearn.compose import ColumnTransformer
from sklearn.ensemble import GradientBoostingRegressor
from sklearn.impute import SimpleImputer
from sklearn.metrics import mean_absolute_error, r2_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder

from build import MEASURED, NAMES, model

HERE = Path(__file__).parent
SEED = 0
RATE = 0.25
WEEKDAYS = ["Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"]
WEATHER = {"clear": "clear", "cloudy/misty": "cloudy", "light rain/snow": "rain", "heavy rain/snow": "rain"}
TYPES = {
    **dict.fromkeys(NAMES, (StringTensorType, object)), "hour": (Int64TensorType, np.int64), "day_off": (BooleanTensorType, bool),
    **dict.fromkeys(MEASURED, (FloatTensorType, np.float32))}


def read(path):
    """The hours with the units that people use: UCI's page on the set says how its numbers between 0 and 1 were made."""
    if path.endswith(".csv"):
        hours = pd.read_csv(path)
        return hours.astype({"day_off": bool, **dict.fromkeys(MEASURED, np.float32)})
    hours = pd.read_csv(io.BytesIO(zipfile.ZipFile(path).read("ISLP/data/Bikeshare.csv")))
    return pd.DataFrame({
        "month": hours.mnth.str[:3],
        "weekday": hours.weekday.map(WEEKDAYS.__getitem__),
        "weather": hours.weathersit.map(WEATHER),
        "hour": hours.hr,
        "day_off": hours.workingday == 0,
        "temperature": (hours.temp * 47 - 8).round(1).astype(np.float32),
        "humidity": (hours.hum * 100).round().astype(np.float32),
        "wind": (hours.windspeed * 67).round(1).astype(np.float32),
        "bikes": hours.bikers, "day": hours.day})


def pipeline():
    columns = ColumnTransformer([
        ("names", OneHotEncoder(handle_unknown="ignore"), NAMES),
        ("measured", SimpleImputer(strategy="median"), MEASURED),
        ("as they are", "passthrough", ["hour", "day_off"])])
    return make_pipeline(columns, GradientBoostingRegressor(
        n_estimators=60, max_depth=None, max_leaf_nodes=20, min_samples_leaf=8, learning_rate=RATE, random_state=SEED))


def rounded(trees):
    """Numbers of few digits, in the trees themselves: what is measured is what ships. A tenth of a bike is below any error."""
    for tree in trees:
        tree.threshold[:] = tree.threshold.round(2).astype(np.float32)
        tree.value[:] = tree.value.round(1)


def nodes(tree):
    def node(place):
        if tree.children_left[place] < 0:
            return float(f"{tree.value[place, 0, 0]:.1f}")
        assert tree.children_right[place] == tree.children_left[place] + 1
        return [int(tree.feature[place]), float(f"{tree.threshold[place]:.4g}"), int(tree.children_left[place])]
    return [node(place) for place in range(tree.node_count)]


def weights_of(fitted):
    encode, boosting = fitted[0].named_transformers_, fitted[-1]
    return {
        "base": float(np.float32(boosting.init_.constant_[0, 0])),
        "rate": RATE,
        "medians": [float(f"{median:.4g}") for median in encode["measured"].statistics_],
        "categories": {name: list(known) for name, known in zip(NAMES, encode["names"].categories_)},
        "trees": [nodes(tree[0].tree_) for tree in boosting.estimators_],
    }


def judge(title, hours, predicted):
    error = mean_absolute_error(hours.bikes, predicted)
    print(f"{title:<46} off by {error:5.1f} bikes on average, R2 {r2_score(hours.bikes, predicted):.3f}")


def means(train, test, by):
    known = train.groupby(by).bikes.mean()
    return [known.get(tuple(hour), train.bikes.mean()) for hour in test[by].itertuples(index=False)]


def tensor(name, values):
    datatype = {"O": "BYTES", "i": "INT64", "b": "BOOL", "f": "FP32"}[values.dtype.kind]
    data = [float(f"{value:.7g}") if datatype == "FP32" else value for value in values.ravel().tolist()]
    return json.dumps({"name": name, "shape": list(values.shape), "datatype": datatype, "data": data})


def main(path):
    hours = read(path)
    days = hours.day.unique()
    held_out = np.random.default_rng(SEED).permutation(days)[:len(days) // 4]
    train, test = hours[~hours.day.isin(held_out)], hours[hours.day.isin(held_out)]
    fitted = pipeline().fit(train[list(TYPES)], train.bikes)
    rounded([tree[0].tree_ for tree in fitted[-1].estimators_])

    judge("the mean of all hours", test, np.full(len(test), train.bikes.mean()))
    judge("the mean of hour and day off", test, means(train, test, ["hour", "day_off"]))
    judge("the mean of hour, day off and month", test, means(train, test, ["hour", "day_off", "month"]))
    judge("the model", test, fitted.predict(test))
    for column in MEASURED:
        judge(f"the model without {column}", test, fitted.predict(test.assign(**{column: np.float32("nan")})))
    print(f"the model says less than 0 in {np.mean(fitted.predict(test) < 0):.3f} of the hours")

    weights = weights_of(fitted)
    exported = to_onnx(fitted, initial_types=[(name, kind([None, 1])) for name, (kind, _) in TYPES.items()])
    rebuilt = model(json.loads(json.dumps(weights)))
    assert rebuilt.SerializeToString(deterministic=True) == exported.SerializeToString(deterministic=True), "build.py makes another file"
    session = onnxruntime.InferenceSession(rebuilt.SerializeToString())
    inputs = {name: test[[name]].to_numpy(dtype=datatype) for name, (_, datatype) in TYPES.items()}
    apart = np.abs(session.run(None, inputs)[0].ravel() - fitted.predict(test)).max()
    print(f"build.py makes the file that skl2onnx makes; ONNX Runtime differs from scikit-learn by at most {apart:.1g}")

    trees = ",\n".join(json.dumps(tree, separators=(",", ":")) for tree in weights.pop("trees"))
    head = "\n".join(f'"{name}": {json.dumps(value)},' for name, value in weights.items())
    (HERE / "trees.json").write_text(f'{{\n{head}\n"trees": [\n{trees}\n]\n}}\n')

    golden = test.iloc[np.linspace(0, len(test) - 1, 8).astype(int)]
    listed = ",\n".join(tensor(name, golden[[name]].to_numpy(dtype=datatype)) for name, (_, datatype) in TYPES.items())
    predicted = tensor("variable", fitted.predict(golden).reshape(-1, 1))
    (HERE / "golden" / "rows.json").write_text(f'{{\n"inputs": [{listed}],\n"outputs": [{predicted}]\n}}\n')


if __name__ == "__main__":
    main(*sys.argv[1:])
