#!/usr/bin/env python3
"""Writes table models as people export them: scikit-learn, XGBoost and LightGBM with the default options of their converters.

usage: table_models.py FOLDER      with the Python of .ledge/peers/tables, which `make setup-tables` makes

Each model is a folder of a model repository. `predicted.txt` has a line for each of 1,000 rows, which `columns.json` makes (`table_rows.py`):
what the library that trained the model predicts for it. `golden/rows.json` has ten of them, so that a load compares them too.
"""
import json
import sys
from pathlib import Path

import numpy as np
import pandas as pd
from lightgbm import LGBMClassifier, LGBMRegressor
from onnxmltools import convert_lightgbm, convert_xgboost
from onnxmltools.convert.common.data_types import FloatTensorType as ToolsFloat
from skl2onnx import to_onnx
from skl2onnx.common.data_types import DoubleTensorType, FloatTensorType, Int64TensorType, StringTensorType
from sklearn.cluster import KMeans
from sklearn.compose import ColumnTransformer
from sklearn.datasets import load_breast_cancer, load_diabetes, load_iris, load_wine
from sklearn.ensemble import GradientBoostingRegressor, RandomForestClassifier
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from xgboost import XGBClassifier, XGBRegressor

import table_rows

SEED = 0
DATATYPES = {"float32": "FP32", "float64": "FP64", "int64": "INT64", "object": "BYTES", "str": "BYTES", "string": "BYTES"}
# A tree compares; a linear model calculates, in 32 bits.
OF_TREES, OF_SUMS = [0, -1, 1e6, -1e6, 1e30, -1e30, 3.4e38], [0, -1, 1000, -1e6, 1e6]


def columns_of(data, **more):
    """Numbers of four digits in the range of those of the data, and a tenth of it beyond."""
    def column(place, values):
        low, high = values.min(), values.max()
        margin = (high - low) / 10
        decimals = max(0, 4 - int(np.ceil(np.log10(max(abs(low), abs(high))))))
        ends = {"low": int((low - margin) * 10 ** decimals), "high": int((high + margin) * 10 ** decimals)}
        return {"name": f"column_{place}", "decimals": decimals, **ends, **more}
    return [column(place, values) for place, values in enumerate(data.T)]


def matrix(rows):
    return np.array([[np.nan if cell is None else cell for cell in row] for row in rows], np.float64)


def tensor(name, values):
    values = np.asarray(values)
    datatype = "BYTES" if values.dtype.kind in "OUT" else DATATYPES[values.dtype.name]
    data = values.ravel().tolist()
    if values.dtype == np.float32:
        data = [float(f"{number:.9g}") for number in data]
    return {"name": name, "shape": list(values.shape), "datatype": datatype, "data": data}


def line(outputs, row):
    """The class or the number, and the scores behind it."""
    first, *scores = outputs.values()
    number = first[row] if first.ndim == 1 else first[row, 0]
    digits = {"f8": "{:.12g}", "f4": "{:.7g}"}.get(first.dtype.str[1:], "{}")
    return " ".join([digits.format(number), *(f"{score:.6f}".rstrip("0").rstrip(".") for score in (scores[0][row] if scores else ()))])


def write(folder, name, model, columns, inputs, predict, tolerance=1e-3):
    """INPUTS makes the tensors of rows, and PREDICT what the library says of the tensors."""
    folder = folder / name
    (folder / "1").mkdir(parents=True)
    (folder / "golden").mkdir()
    (folder / "1" / "model.onnx").write_bytes(model.SerializeToString())
    rows = table_rows.rows(columns)
    outputs = predict(inputs(rows))
    (folder / "columns.json").write_text("[\n" + ",\n".join(json.dumps(column) for column in columns) + "\n]\n")
    (folder / "predicted.txt").write_text("".join(line(outputs, row) + "\n" for row in range(len(rows))))

    whole = inputs([row for row in rows if None not in row][:10])
    golden = {
        "inputs": [tensor(*port) for port in whole.items()],
        "outputs": [tensor(port, values.astype(np.float32) if len(outputs) == 2 and values.dtype == np.float64 else values)
                    for port, values in predict(whole).items()]}
    (folder / "golden" / "rows.json").write_text(json.dumps(golden, separators=(",", ":"), allow_nan=False) + "\n")
    (folder / "model.toml").write_text(f'[[golden]]\nfile = "golden/rows.json"\ntolerance = {tolerance}\n')


def in_floats(name, datatype=np.float32):
    return lambda rows: {name: matrix(rows).astype(datatype)}


def classes_of(classifier, label="output_label", probabilities="output_probability"):
    def predict(inputs):
        rows, = inputs.values()
        return {label: classifier.predict(rows), probabilities: classifier.predict_proba(rows)}
    return predict


def numbers_of(regressor, datatype=np.float32):
    def predict(inputs):
        rows, = inputs.values()
        return {"variable": regressor.predict(rows).astype(datatype).reshape(-1, 1)}
    return predict


def scikit_learn(folder):
    iris, wine, diabetes = load_iris(), load_wine(), load_diabetes()
    floats = in_floats("X")

    # String labels: a sequence of maps from strings.
    forest = RandomForestClassifier(5, max_depth=3, random_state=SEED).fit(iris.data, iris.target_names[iris.target])
    model = to_onnx(forest, iris.data[:1].astype(np.float32))
    write(folder, "iris_forest", model, columns_of(iris.data, extremes=OF_TREES), floats, classes_of(forest))

    # Labels of whole numbers, which begin at 1.
    logistic = make_pipeline(StandardScaler(), LogisticRegression()).fit(wine.data, wine.target + 1)
    model = to_onnx(logistic, wine.data[:1].astype(np.float32))
    write(folder, "wine_logistic", model, columns_of(wine.data, extremes=OF_SUMS), floats, classes_of(logistic))

    boosting = GradientBoostingRegressor(n_estimators=8, max_depth=2, random_state=SEED).fit(diabetes.data, diabetes.target)
    model = to_onnx(boosting, diabetes.data[:1].astype(np.float32))
    write(folder, "diabetes_boosting", model, columns_of(diabetes.data, extremes=OF_TREES), floats, numbers_of(boosting))

    linear = LinearRegression().fit(diabetes.data, diabetes.target)
    model = to_onnx(linear, initial_types=[("X", DoubleTensorType([None, diabetes.data.shape[1]]))])
    columns = columns_of(diabetes.data, extremes=OF_SUMS)
    write(folder, "diabetes_linear", model, columns, in_floats("X", np.float64), numbers_of(linear, np.float64))

    # One dimension comes out, and scores of no class.
    clusters = KMeans(3, n_init=1, random_state=SEED).fit(iris.data.astype(np.float32))

    def predict(inputs):
        return {"label": clusters.predict(inputs["X"]).astype(np.int64), "scores": clusters.transform(inputs["X"])}
    model = to_onnx(clusters, iris.data[:1].astype(np.float32))
    write(folder, "iris_clusters", model, columns_of(iris.data), floats, predict, tolerance=5e-3)


def columns(folder):
    """A pipeline with a ColumnTransformer: one input a column, numbers that may be missing, and strings."""
    def frame(rows, seed):
        random = np.random.default_rng(seed)
        made = pd.DataFrame({
            "temperature": random.normal(60, 15, rows).astype(np.float32),
            "vibration": random.gamma(2, 1.5, rows).astype(np.float32),
            "hours": random.integers(0, 9000, rows),
            "machine": random.choice(["press", "lathe", "mill", "saw"], rows),
            "shift": random.choice(["early", "late", "night"], rows),
        })
        risk = (made.temperature - 60) / 15 + made.vibration / 3 + made.hours / 3000 + (made.machine == "saw") + (made["shift"] == "night") / 2
        return made, np.where(risk > 3.5, "service", np.where(risk > 2.5, "watch", "ok"))

    names = ["machine", "shift"]
    encode = ColumnTransformer([
        ("numbers", make_pipeline(SimpleImputer(strategy="median"), StandardScaler()), ["temperature", "vibration"]),
        ("hours", StandardScaler(), ["hours"]),
        ("names", OneHotEncoder(handle_unknown="ignore"), names),
    ])
    train, condition = frame(800, 1)
    pipeline = make_pipeline(encode, LogisticRegression(max_iter=1000)).fit(train, condition)
    kinds = {"float32": FloatTensorType, "int64": Int64TensorType}
    types = [(name, kinds.get(train[name].dtype.name, StringTensorType)([None, 1])) for name in train.columns]
    datatypes = {"temperature": np.float32, "vibration": np.float32, "hours": np.int64, "machine": object, "shift": object}

    def inputs(rows):
        cells = zip(datatypes.items(), zip(*rows))
        return {name: np.array([np.nan if cell is None else cell for cell in column], datatype).reshape(-1, 1)
                for (name, datatype), column in cells}

    def predict(inputs):
        rows = pd.DataFrame({name: values.ravel() for name, values in inputs.items()})
        return {"output_label": pipeline.predict(rows), "output_probability": pipeline.predict_proba(rows)}
    # It knows no drill, and has never seen a holiday.
    made = [
        {"name": "temperature", "decimals": 1, "low": 0, "high": 1200, "missing": True, "extremes": OF_SUMS},
        {"name": "vibration", "decimals": 2, "low": 0, "high": 1500, "missing": True, "extremes": OF_SUMS},
        {"name": "hours", "decimals": 0, "low": 0, "high": 9000, "extremes": [-1, 0, 1000000]},
        {"name": "machine", "names": ["press", "lathe", "mill", "saw", "drill"]},
        {"name": "shift", "names": ["early", "late", "night", "holiday"], "extremes": ["night, or \"late\""]},
    ]
    write(folder, "machine_condition", to_onnx(pipeline, initial_types=types), made, inputs, predict)


def with_gaps(data):
    """The data without one of twenty values, so that the trees learn where a row without it goes."""
    return np.where(np.random.default_rng(SEED).random(data.shape) < 0.05, np.nan, data)


def boosted(folder):
    cancer, diabetes, iris = load_breast_cancer(), load_diabetes(), load_iris()
    sizes = {"n_estimators": 6, "max_depth": 3, "random_state": SEED}
    # XGBoost calculates in 32 bits as ONNX does; LightGBM takes the numbers as they are.
    libraries = {
        "xgboost": (XGBClassifier, XGBRegressor, sizes, convert_xgboost),
        "lightgbm": (LGBMClassifier, LGBMRegressor, {"verbose": -1, **sizes}, convert_lightgbm)}
    for library, (classifier, regressor, options, convert) in libraries.items():
        for data, name in [(cancer, "cancer"), (iris, "iris"), (diabetes, "diabetes")]:
            kind, answers = (regressor, numbers_of) if name == "diabetes" else (classifier, boosted_classes)
            fitted = kind(**options).fit(with_gaps(data.data), data.target)
            model = convert(fitted, initial_types=[("input", ToolsFloat([None, data.data.shape[1]]))])
            columns = columns_of(data.data, missing=True, extremes=OF_TREES)
            write(folder, f"{name}_{library}", model, columns, in_floats("input", np.float64), answers(fitted))


def boosted_classes(classifier):
    return classes_of(classifier, "label", "probabilities")


def main(folder):
    folder = Path(folder)
    scikit_learn(folder)
    columns(folder)
    boosted(folder)


if __name__ == "__main__":
    main(*sys.argv[1:])
