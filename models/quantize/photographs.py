"""Photographs into the tensors that Ledge would make of them: upright, resized, cut from the middle, normalised.

It follows `src/engine/pipeline/preparation.rs`: bilinear with antialiasing, sizes and offsets as torchvision rounds them.
"""
import io
from dataclasses import dataclass

import numpy as np
from PIL import Image, ImageOps
from progress import Failure

SUFFIXES = {".jpg", ".jpeg", ".png", ".webp"}


@dataclass(frozen=True)
class Preparation:
    """MEAN and STD are in pixels, 0 to 255, as in `[pipeline.image_classification]`; SIZE is (height, width)."""
    size: tuple
    resize_short: int | None
    mean: tuple
    std: tuple
    layout: str
    color: str

    def tensor(self, picture, dtype):
        """[1, 3, height, width] or [1, height, width, 3] of an RGB picture of the right size."""
        pixels = np.asarray(picture, np.float32)
        if self.color == "bgr":
            pixels = pixels[..., ::-1]
        values = (pixels - np.float32(self.mean)) / np.float32(self.std)
        if self.layout == "nchw":
            values = values.transpose(2, 0, 1)
        if dtype == np.uint8:
            values = np.clip(np.rint(values), 0, 255)
        return np.ascontiguousarray(values[None], dtype)

    def whole(self, content):
        """The picture as Ledge shows it to the model."""
        picture, (height, width) = decode(content), self.size
        if self.resize_short is None:
            return picture.resize((width, height), Image.Resampling.BILINEAR)
        short, (wide, high) = self.resize_short, picture.size
        size = (short, short * high // wide) if wide <= high else (short * wide // high, short)
        picture = picture.resize(size, Image.Resampling.BILINEAR)
        left, top = round((size[0] - width) / 2), round((size[1] - height) / 2)
        return picture.crop((left, top, left + width, top + height))

    def crop(self, content, random):
        """A random part of the picture, between 45 % and 100 % of its shorter side, mirrored or not."""
        picture, (height, width) = decode(content), self.size
        scale = min(picture.width / width, picture.height / height) * random.uniform(0.45, 1.0)
        size = max(1, int(width * scale)), max(1, int(height * scale))
        left, top = (int(random.integers(0, whole - part + 1)) for whole, part in zip(picture.size, size))
        part = picture.resize((width, height), Image.Resampling.BILINEAR, box=(left, top, left + size[0], top + size[1]))
        return part.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if random.random() < 0.5 else part


def decode(content):
    try:
        picture = Image.open(io.BytesIO(content))
        return ImageOps.exif_transpose(picture).convert("RGB")
    except (OSError, ValueError, Image.DecompressionBombError) as error:
        raise Failure(f"cannot be decoded: {error}") from error


def preparation(options, port):
    """What the options and the model's input PORT say together; a Failure where they contradict each other."""
    if len(port.shape) != 4:
        raise Failure(f"photographs need a model input of 4 dimensions; {port.name} has shape {show(port.shape)}")
    if port.dtype not in (np.float32, np.float16, np.uint8):
        raise Failure(f"photographs become float or uint8 tensors; {port.name} is {port.dtype}")
    sides = port.shape[2:] if options.layout == "nchw" else port.shape[1:3]
    channels = port.shape[1] if options.layout == "nchw" else port.shape[3]
    if channels not in (3, None):
        other = "nhwc" if options.layout == "nchw" else "nchw"
        raise Failure(
            f"{port.name} has shape {show(port.shape)}: not 3 channels with --layout {options.layout}. Try --layout {other}.")
    size = options.image_size or tuple(sides)
    if None in size:
        raise Failure(f"{port.name} has shape {show(port.shape)}: say the size of its pictures with --image-size")
    if any(fixed not in (None, given) for fixed, given in zip(sides, size)):
        raise Failure(f"--image-size is {size[0]}x{size[1]}, but {port.name} has shape {show(port.shape)}")
    if options.resize_short and options.resize_short < max(size):
        raise Failure(f"--resize-short is {options.resize_short}, less than the model's input of {size[0]}x{size[1]}")
    # (pixel * scale - mean) / std = (pixel - mean / scale) / (std / scale)
    mean, std = (tuple(value / options.scale for value in values) for values in (options.mean, options.std))
    return Preparation(size, options.resize_short, mean, std, options.layout, options.color)


def show(shape):
    return "[" + ",".join("N" if dim is None else str(dim) for dim in shape) + "]"
