"""EfficientNet-Lite0 as a list of layers, with the trained weights; batch normalisation is folded into the convolutions."""
import collections

import numpy as np

SIDE = 224
CLASSES = 1000

# y = convolution of x, then clipped to 0..6 where relu6 is set; pads as in ONNX: top, left, bottom, right.
Conv = collections.namedtuple("Conv", "x y weight bias stride pads groups relu6")
Add = collections.namedtuple("Add", "x other y")
Pool = collections.namedtuple("Pool", "x y")  # global average, flattened to [N, channels]
Linear = collections.namedtuple("Linear", "x y weight bias")  # y = x . weight^T + bias

# The stages of the paper's B0 network, less what "lite" removes (squeeze-and-excitation, swish):
# (blocks, kernel, stride of the first block, expansion, channels in, channels out).
STAGES = [
    (1, 3, 1, 1, 32, 16), (2, 3, 2, 6, 16, 24), (2, 5, 2, 6, 24, 40), (3, 3, 2, 6, 40, 80),
    (3, 5, 1, 6, 80, 112), (4, 5, 2, 6, 112, 192), (1, 3, 1, 6, 192, 320),
]
BATCH_NORM_EPSILON = 1e-3


class Builder:
    def __init__(self, tensors):
        self.tensors, self.layers, self.side = dict(tensors), [], SIDE

    def take(self, name):
        return self.tensors.pop(name)

    def conv(self, x, name, norm, stride=1, groups=1, relu6=True):
        """Appends a convolution with its batch normalisation and gives the name of its output."""
        weight = self.take(f"{name}.weight")
        gain, shift, mean, variance = (self.take(f"{norm}.{part}") for part in ("weight", "bias", "running_mean", "running_var"))
        self.tensors.pop(f"{norm}.num_batches_tracked", None)
        scale = gain / np.sqrt(variance + np.float32(BATCH_NORM_EPSILON))

        # TensorFlow's "same" padding, which the weights were trained with: an odd pixel goes to the bottom right.
        kernel, out_side = weight.shape[2], -(-self.side // stride)
        padding = max((out_side - 1) * stride + kernel - self.side, 0)
        before, after = padding // 2, padding - padding // 2
        self.side = out_side

        y = f"conv{sum(isinstance(layer, Conv) for layer in self.layers)}"
        self.layers.append(Conv(
            x, y, weight * scale[:, None, None, None], shift - mean * scale,
            stride, [before, before, after, after], groups, relu6))
        return y

    def block(self, x, index, stride, expansion, channels_in, channels_out):
        """An inverted residual: widen (1x1), filter each channel (depthwise), narrow (1x1), add the input if shapes allow."""
        name, wide, y = f"_blocks.{index}.", channels_in * expansion, x
        if expansion != 1:
            y = self.conv(y, name + "_expand_conv", name + "_bn0")
        y = self.conv(y, name + "_depthwise_conv", name + "_bn1", stride, groups=wide)
        y = self.conv(y, name + "_project_conv", name + "_bn2", relu6=False)
        if stride == 1 and channels_in == channels_out:
            self.layers.append(Add(y, x, f"add{index}"))
            y = f"add{index}"
        return y

    def build(self):
        x, index = self.conv("input", "_conv_stem", "_bn0", stride=2), 0
        for blocks, _kernel, stride, expansion, channels_in, channels_out in STAGES:
            for repeat in range(blocks):
                first = repeat == 0
                x = self.block(x, index, stride if first else 1, expansion, channels_in if first else channels_out, channels_out)
                index += 1
        x = self.conv(x, "_conv_head", "_bn1")
        self.layers += [Pool(x, "pooled"), Linear("pooled", "logits", self.take("_fc.weight"), self.take("_fc.bias"))]
        if self.tensors:
            raise ValueError(f"the file has tensors that the network does not use: {sorted(self.tensors)}")
        return self.layers


def layers(tensors):
    """The network's layers in order, from the tensors of the published PyTorch file."""
    return Builder(tensors).build()
