"""Runs a model in this process, as a program with the runtime linked in would. inprocess.py starts it in the environment
of .ledge/peers/inprocess and talks to it in lines of JSON.

The same files, thread counts and options as in the daemon. CPU time is this process's own clock around the runs; Python
adds some 10 us to each, which favours the daemon by 0.2 % of a run of 7 ms and is said so in README.md.
"""
import json
import os
import sys
import threading
import time


class OnnxRuntime:
    def __init__(self, model, threads, spin):
        import onnxruntime
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
        options.add_session_config_entry("session.intra_op.allow_spinning", str(int(spin)))
        options.add_session_config_entry("session.inter_op.allow_spinning", "0")
        self.session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        self.input = self.session.get_inputs()[0].name

    def run(self, tensor):
        return self.session.run(None, {self.input: tensor})


class OpenVino:
    def __init__(self, model, threads, spin):
        import openvino
        core = openvino.Core()
        core.set_property("CPU", {
            "NUM_STREAMS": "1", "INFERENCE_NUM_THREADS": str(threads), "ENABLE_CPU_PINNING": "NO",
            "INFERENCE_PRECISION_HINT": "f32"})
        self.request = core.compile_model(model, "CPU").create_infer_request()

    def run(self, tensor):
        return self.request.infer({0: tensor}, share_inputs=True, share_outputs=True)


RUNTIMES = {"onnxruntime": OnnxRuntime, "openvino": OpenVino}


def load(runtime, model, threads, instances, shape, input, spin):
    import numpy
    tensor = numpy.fromfile(input, dtype=numpy.float32).reshape(shape)
    made = [RUNTIMES[runtime](model, threads, spin) for _ in range(instances)]
    for one in made:
        one.run(tensor)
    return made, tensor


def run(instance, tensor, seconds):
    """As many runs as fit, one after the other: their latencies in ns."""
    latencies, clock = [], time.perf_counter_ns
    now = clock()
    end = now + int(seconds * 1e9)
    while now < end:
        start = clock()
        instance.run(tensor)
        now = clock()
        latencies.append(now - start)
    return latencies


def run_all(instances, tensor, seconds):
    """Runs all instances at the same time, one thread each; both runtimes release Python's lock while they compute."""
    results = [[] for _ in instances]
    cpu, start = time.process_time_ns(), time.perf_counter_ns()
    others = [threading.Thread(target=lambda i=i: results[i].extend(run(instances[i], tensor, seconds)))
              for i in range(1, len(instances))]
    for thread in others:
        thread.start()
    results[0].extend(run(instances[0], tensor, seconds))
    for thread in others:
        thread.join()
    return {"wall_ns": time.perf_counter_ns() - start, "cpu_ns": time.process_time_ns() - cpu,
            "latencies": [latency for result in results for latency in result]}


def make_photo(source, target):
    """A JPEG of 640x480 from one of the test photographs: quality 90, colours halved both ways, as cameras do."""
    from PIL import Image
    photo = Image.open(source).convert("RGB").resize((640, 480), Image.Resampling.LANCZOS)
    photo.save(target, quality=90, subsampling="4:2:0", optimize=False)


def decode(photo, seconds):
    """JPEG to tensor with Pillow (libjpeg-turbo) and numpy: CPU ns each."""
    import io
    import numpy
    from PIL import Image
    data, spent = open(photo, "rb").read(), []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        start = time.process_time_ns()
        image = Image.open(io.BytesIO(data))
        image = image.resize((341, 256), Image.Resampling.BILINEAR).crop((58, 16, 282, 240))
        numpy.ascontiguousarray(((numpy.asarray(image, numpy.float32) - 127) / 128).transpose(2, 0, 1))
        spent.append(time.process_time_ns() - start)
    return spent


def main():
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # keeps the output of a runtime out of the answers
    loaded = None
    for line in sys.stdin:
        words = json.loads(line)
        verb = words.pop("do")
        if verb == "load":
            loaded, answer = load(**words), {}
        elif verb == "run":
            answer = run_all(*loaded, **words)
        elif verb == "photo":
            answer = make_photo(**words)
        else:
            answer = {"cpu_ns": decode(**words)}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
