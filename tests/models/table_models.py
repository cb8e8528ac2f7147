#!/usr/bin/env python3
"""Writes table models as people export them: scikit-learn, XGBoost and LightGBM with the default options of their converters.

usage: table_models.py FOLDER [ROWS]      in an environment of its own with:
    pip install scikit-learn==1.9.1 skl2onnx==1.20.0 onnxmltools==1.16.0 xgboost==3.2.0 lightgbm==4.7.0 pandas

Each model is a folder of a model repository. Its golden call has ROWS rows (10 by default) with the predictions of the library that
trained it, so that a load is the comparison.
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

SEED = 0
DATATYPES = {"float32": "FP32", "float64": "FP64", "int64": "INT64", "object": "BYTES", "str": "BYTES", "string": "BYTES"}


def sample(data, rows):
    """Rows near those of the data: more of them than it has, and none that a tree was split at."""
    random = np.random.default_rng(SEED)
    chosen = data[random.integers(0, len(data), rows)]
    return (chosen + random.normal(0, 1, chosen.shape) * data.std(axis=0) * 0.1).astype(np.float32)


def tensor(name, values):
    values = np.asarray(values)
    datatype = "BYTES" if values.dtype.kind in "OUT" else DATATYPES[values.dtype.name]
    data = values.ravel().tolist()
    if values.dtype == np.float32:
        data = [float(f"{number:.9g}") for number in data]
    return {"name": name, "shape": list(values.shape), "datatype": datatype, "data": data}


def write(folder, name, model, inputs, outputs, tolerance=1e-3):
    folder = folder / name
    (folder / "1").mkdir(parents=True)
    (folder / "golden").mkdir()
    (folder / "1" / "model.onnx").write_bytes(model.SerializeToString())
    golden = {"inputs": [tensor(*port) for port in inputs.items()], "outputs": [tensor(*port) for port in outputs.items()]}
    (folder / "golden" / "rows.json").write_text(json.dumps(golden, separators=(",", ":"), allow_nan=False) + "\n")
    (folder / "model.toml").write_text(f'[[golden]]\nfile = "golden/rows.json"\ntolerance = {tolerance}\n')


def classes_of(classifier, rows, label="output_label", probabilities="output_probability"):
    return {label: classifier.predict(rows), probabilities: classifier.predict_proba(rows).astype(np.float32)}


def scikit_learn(folder, count):
    iris, wine, diabetes = load_iris(), load_wine(), load_diabetes()

    # String labels: a sequence of maps from strings.
    forest = RandomForestClassifier(5, max_depth=3, random_state=SEED).fit(iris.data, iris.target_names[iris.target])
    rows = sample(iris.data, count)
    write(folder, "iris_forest", to_onnx(forest, rows[:1]), {"X": rows}, classes_of(forest, rows))

    # Labels of whole numbers, which begin at 1.
    logistic = make_pipeline(StandardScaler(), LogisticRegression()).fit(wine.data, wine.target + 1)
    rows = sample(wine.data, count)
    write(folder, "wine_logistic", to_onnx(logistic, rows[:1]), {"X": rows}, classes_of(logistic, rows))

    rows = sample(diabetes.data, count)
    boosting = GradientBoostingRegressor(n_estimators=8, max_depth=2, random_state=SEED).fit(diabetes.data, diabetes.target)
    outputs = {"variable": boosting.predict(rows).astype(np.float32).reshape(-1, 1)}
    write(folder, "diabetes_boosting", to_onnx(boosting, rows[:1]), {"X": rows}, outputs)

    linear = LinearRegression().fit(diabetes.data, diabetes.target)
    rows = rows.astype(np.float64)
    model = to_onnx(linear, initial_types=[("X", DoubleTensorType([None, rows.shape[1]]))])
    write(folder, "diabetes_linear", model, {"X": rows}, {"variable": linear.predict(rows).reshape(-1, 1)})

    # One dimension comes out, and scores of no class.
    clusters = KMeans(3, n_init=1, random_state=SEED).fit(iris.data.astype(np.float32))
    rows = sample(iris.data, count)
    outputs = {"label": clusters.predict(rows).astype(np.int64), "scores": clusters.transform(rows).astype(np.float32)}
    write(folder, "iris_clusters", to_onnx(clusters, rows[:1]), {"X": rows}, outputs, tolerance=5e-3)


def columns(folder, count):
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

    numbers, names = ["temperature", "vibration", "hours"], ["machine", "shift"]
    encode = ColumnTransformer([
        ("numbers", make_pipeline(SimpleImputer(strategy="median"), StandardScaler()), ["temperature", "vibration"]),
        ("hours", StandardScaler(), ["hours"]),
        ("names", OneHotEncoder(handle_unknown="ignore"), names),
    ])
    train, condition = frame(800, 1)
    pipeline = make_pipeline(encode, LogisticRegression(max_iter=1000)).fit(train, condition)
    kinds = {"float32": FloatTensorType, "int64": Int64TensorType}
    types = [(name, kinds.get(train[name].dtype.name, StringTensorType)([None, 1])) for name in train.columns]
    rows, _ = frame(count, 2)
    model = to_onnx(pipeline, initial_types=types)
    inputs = {name: rows[[name]].to_numpy() for name in numbers + names}
    write(folder, "machine_condition", model, inputs, classes_of(pipeline, rows))


def boosted(folder, count):
    cancer, diabetes, iris = load_breast_cancer(), load_diabetes(), load_iris()
    sizes = {"n_estimators": 6, "max_depth": 3, "random_state": SEED}
    types = lambda data: [("input", ToolsFloat([None, data.shape[1]]))]

    for name, classifier, data, target in [
            ("cancer_xgboost", XGBClassifier(**sizes), cancer.data, cancer.target),
            ("iris_xgboost", XGBClassifier(**sizes), iris.data, iris.target)]:
        classifier.fit(data.astype(np.float32), target)
        rows = sample(data, count)
        write(folder, name, convert_xgboost(classifier, initial_types=types(data)), {"input": rows},
              classes_of(classifier, rows, "label", "probabilities"))
    for name, classifier, data, target in [
            ("cancer_lightgbm", LGBMClassifier(verbose=-1, **sizes), cancer.data, cancer.target),
            ("iris_lightgbm", LGBMClassifier(verbose=-1, **sizes), iris.data, iris.target)]:
        classifier.fit(data.astype(np.float32), target)
        rows = sample(data, count)
        write(folder, name, convert_lightgbm(classifier, initial_types=types(data)), {"input": rows},
              classes_of(classifier, rows, "label", "probabilities"))

    rows = sample(diabetes.data, count)
    for name, regressor, convert in [
            ("diabetes_xgboost", XGBRegressor(**sizes), convert_xgboost),
            ("diabetes_lightgbm", LGBMRegressor(verbose=-1, **sizes), convert_lightgbm)]:
        regressor.fit(diabetes.data.astype(np.float32), diabetes.target)
        predicted = regressor.predict(rows).astype(np.float32).reshape(-1, 1)
        write(folder, name, convert(regressor, initial_types=types(diabetes.data)), {"input": rows}, {"variable": predicted})


def main(folder, rows="10"):
    folder, rows = Path(folder), int(rows)
    scikit_learn(folder, rows)
    columns(folder, rows)
    boosted(folder, rows)


if __name__ == "__main__":
    main(*sys.argv[1:])
