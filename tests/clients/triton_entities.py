"""The official tritonclient[http] calls a model with entity keys: as input tensors named like the join keys.

usage: triton_entities.py HOST:PORT PROBABILITIES      (of the wines barolo and dolcetto, as a JSON list)"""

import json
import sys

import numpy as np
import tritonclient.http as triton


def tensor(name, value, datatype, binary):
    tensor = triton.InferInput(name, value.shape, datatype)
    tensor.set_data_from_numpy(value, binary_data=binary)
    return tensor


def main(address, expected):
    client = triton.InferenceServerClient(address)
    expected = np.array(json.loads(expected), np.float32).reshape(2, 3)
    names = np.array(["barolo", "dolcetto"], dtype=object)
    for binary in [True, False]:
        for keys in [names, names.reshape(2, 1)]:
            answer = client.infer("wine_mlp", [tensor("wine_id", keys, "BYTES", binary)])
            np.testing.assert_array_equal(answer.as_numpy("probabilities"), expected)
        # A value given for one feature, and which ones counted.
        proline = np.array([[625], [625]], np.int64)
        inputs = [tensor("wine_id", names, "BYTES", binary), tensor("cellar:proline", proline, "INT64", binary)]
        answer = client.infer("wine_mlp", inputs, parameters={"feature_values": True})
        used = answer.get_response()["features"]
        assert used["cellar:proline"]["sources"] == ["given", "given"], used
        assert used["lab:alcohol"]["values"] == [14.37, 12.87], used
    print("ok")


main(*sys.argv[1:])
