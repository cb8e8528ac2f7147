#!/usr/bin/env python3
"""Trains the network and writes weights.json and golden/rows.json. Run once; its results are committed.

usage: train.py      in an environment of its own with:  pip install numpy==2.4.6 scikit-learn==1.9.1

The data are the 178 wines that scikit-learn ships; a quarter of them is held out, and six of those become the golden rows.
"""
import json
from pathlib import Path

import numpy as np
from sklearn.datasets import load_wine
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier
from sklearn.preprocessing import StandardScaler

HERE = Path(__file__).parent
SEED = 0
HIDDEN = 16


def rounded(values):
    """Seven significant digits: as much as a float32 holds."""
    return [float(f"{value:.7g}") for value in np.ravel(values)]


def probabilities(weights, rows):
    """The network in float64: the reference that both runtimes are held against."""
    array = {name: np.array(values) for name, values in weights.items() if name != "features"}
    x = (rows - array["mean"]) * array["inverse_deviation"]
    hidden = np.maximum(x @ array["hidden_weight"].reshape(-1, HIDDEN) + array["hidden_bias"], 0)
    logits = hidden @ array["output_weight"].reshape(HIDDEN, -1) + array["output_bias"]
    exponentials = np.exp(logits - logits.max(axis=1, keepdims=True))
    return exponentials / exponentials.sum(axis=1, keepdims=True)


def tensor(name, array):
    return json.dumps({"name": name, "shape": list(array.shape), "datatype": "FP32", "data": rounded(array)})


def main():
    wine = load_wine()
    train_x, test_x, train_y, test_y = train_test_split(
        wine.data, wine.target, test_size=0.25, stratify=wine.target, random_state=SEED)
    scaler = StandardScaler().fit(train_x)
    network = MLPClassifier((HIDDEN,), alpha=1.0, solver="lbfgs", max_iter=2000, random_state=SEED)
    network.fit(scaler.transform(train_x), train_y)
    weights = {
        "features": wine.feature_names,
        "mean": rounded(scaler.mean_),
        "inverse_deviation": rounded(1 / scaler.scale_),
        "hidden_weight": rounded(network.coefs_[0]),
        "hidden_bias": rounded(network.intercepts_[0]),
        "output_weight": rounded(network.coefs_[1]),
        "output_bias": rounded(network.intercepts_[1]),
    }
    rows = ",\n".join(f'"{name}": {json.dumps(values)}' for name, values in weights.items())
    (HERE / "weights.json").write_text("{\n" + rows + "\n}\n")

    # Of each class the least and the most certain answer.
    by_certainty = np.argsort(probabilities(weights, test_x).max(axis=1))
    golden = test_x[[by_certainty[test_y[by_certainty] == wine_class][end] for wine_class in range(3) for end in (0, -1)]]
    request = f'''{{
"inputs": [{tensor("features", golden)}],
"outputs": [{tensor("probabilities", probabilities(weights, golden))}]
}}
'''
    (HERE / "golden" / "rows.json").write_text(request)

    for part, x, y in (("training", train_x, train_y), ("held out", test_x, test_y)):
        right = (probabilities(weights, x).argmax(axis=1) == y).sum()
        print(f"{part}: {right} of {len(y)} right ({right / len(y):.3f})")


if __name__ == "__main__":
    main()
