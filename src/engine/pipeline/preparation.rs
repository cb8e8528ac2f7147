//! Converts a picture into the tensor that a model expects: resize, crop or pad, normalise, lay out.

use fast_image_resize::images::{TypedImage, TypedImageRef};
use fast_image_resize::pixels::U8x3;
use fast_image_resize::{FilterType, ImageBufferError, ImageView, ResizeAlg, ResizeError, ResizeOptions, Resizer};
use half::f16;
use ledge_base::tensor::{DataType, Tensor, TensorElement};
use serde::{Deserialize, Serialize};

use super::image::{Photograph, Rgb8Image};
use super::quantization::Quantization;

/// The order of a picture tensor's dimensions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum TensorLayout {
    /// Channels first, in three planes: `[1, 3, height, width]`.
    #[default]
    #[serde(rename = "NCHW")]
    Nchw,
    /// Channels last, interleaved: `[1, height, width, 3]`.
    #[serde(rename = "NHWC")]
    Nhwc,
}

/// The order of the channels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum ChannelOrder {
    /// Red first.
    #[default]
    Rgb,
    /// Blue first.
    Bgr,
}

/// The way in which a picture of any size fills a tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PictureFit {
    /// The picture is resized to the tensor's size, and its aspect ratio changes.
    Stretch,
    /// The picture is resized until its shorter side has this length, and the middle is cut out.
    Crop { shorter_side: u32 },
    /// The whole picture is resized until one side fills the tensor. The rest of the tensor is `gray`.
    Letterbox {
        /// The value of every channel outside the picture.
        gray: u8,
        /// `true` puts the picture into the middle, `false` into the upper left corner.
        centred: bool,
    },
}

/// The rectangle of a tensor that holds the whole picture, in pixels of the tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PicturePlacement {
    pub left: u32,
    pub top: u32,
    pub width: u32,
    pub height: u32,
}

/// The steps from a picture to a tensor.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ImagePreparation {
    pub fit: PictureFit,
    /// Height and width of the tensor.
    pub size: [u32; 2],
    /// Subtracted from every pixel value, 0 to 255; one number for each channel, in the tensor's order.
    pub mean: [f32; 3],
    /// The divisor of the difference, for each channel.
    pub std: [f32; 3],
    /// The order of the dimensions.
    pub layout: TensorLayout,
    /// The order of the channels.
    pub color: ChannelOrder,
}

/// A picture that does not become a tensor.
#[derive(Debug, thiserror::Error)]
pub enum PreparationError {
    /// The model's input has a datatype for which there is no conversion.
    #[error("pictures become FP32, FP16, UINT8 or INT8 tensors, not {datatype}")]
    Datatype { datatype: DataType },
    /// The resized picture is smaller than the crop.
    #[error("cannot crop {crop_height}x{crop_width} (height x width) from a picture resized to {height}x{width}")]
    Crop {
        crop_height: u32,
        crop_width: u32,
        /// Height after the resize.
        height: u64,
        /// Width after the resize.
        width: u64,
    },
    #[error("the picture cannot be resized")]
    Resize(#[from] ResizeError),
    /// Pixels do not fill their size; an [`Rgb8Image`] always does.
    #[error("the picture cannot be resized")]
    Buffer(#[from] ImageBufferError),
    #[error("the picture does not become a tensor")]
    Tensor(#[from] ledge_base::tensor::TensorError),
}

impl ImagePreparation {
    /// The mistakes in numbers that a config sets, each with its key.
    pub fn mistakes(&self) -> Vec<(&'static str, String)> {
        let mut mistakes = Vec::new();
        if !self.mean.iter().all(|mean| mean.is_finite()) {
            mistakes.push(("mean", format!("is {:?}, expected finite numbers", self.mean)));
        }
        if !self.std.iter().all(|std| std.is_normal()) {
            mistakes.push(("std", format!("is {:?}, expected finite numbers other than 0", self.std)));
        }
        mistakes
    }

    /// The shape of every tensor that [`Self::prepare`] makes.
    pub fn shape(&self) -> [usize; 4] {
        let [height, width] = self.size.map(|side| side as usize);
        match self.layout {
            TensorLayout::Nchw => [1, 3, height, width],
            TensorLayout::Nhwc => [1, height, width, 3],
        }
    }

    /// The tensor of a picture: `[1, 3, height, width]` or `[1, height, width, 3]`, each element
    /// `(pixel - mean) / std`; for UINT8 rounded and kept within 0 to 255, for INT8 within -128 to 127.
    ///
    /// A quantized input gets the pixels unchanged (for INT8, minus 128) if neither `mean` nor `std` is set. If one is
    /// set, as for the float model that it was made from, it gets the integer that stands for the result by
    /// `quantization`.
    ///
    /// The filter is bilinear with antialiasing, sizes and offsets are torchvision's. Against Pillow 13.0 (`BILINEAR`,
    /// centre crop) over 60 sizes from 1x1 to 1920x1080, six preparations each, no byte differed by more than 1; it can
    /// be 2 if a few pixels are enlarged and weights are equal; both are then within 1 of the exact value. That is for
    /// photographs decoded as a whole; see [`super::image::decode_within`] for those that were scaled down.
    pub fn prepare(
        &self,
        photograph: &Photograph,
        datatype: DataType,
        quantization: Option<Quantization>,
    ) -> Result<Tensor, PreparationError> {
        let quantized = |value: f32| match quantization {
            Some(quantization) if !self.keeps_pixels() => quantization.quantize(value),
            _ => value,
        };
        match datatype {
            DataType::Fp32 => self.tensor(&self.resized(photograph)?, |value| value),
            DataType::Fp16 => self.tensor(&self.resized(photograph)?, f16::from_f32),
            DataType::Uint8 => self.tensor(&self.resized(photograph)?, |value| saturating_u8(quantized(value))),
            DataType::Int8 if self.keeps_pixels() => {
                self.tensor(&self.resized(photograph)?, |value| saturating_i8(value - 128.0))
            }
            DataType::Int8 => self.tensor(&self.resized(photograph)?, |value| saturating_i8(quantized(value))),
            datatype => Err(PreparationError::Datatype { datatype }),
        }
    }

    /// Returns true if neither `mean` nor `std` is set.
    #[expect(clippy::float_cmp, reason = "compared with the exact defaults")]
    fn keeps_pixels(&self) -> bool {
        self.mean == [0.0; 3] && self.std == [1.0; 3]
    }

    /// The place of a picture of this width and height in the tensor; `None` where a part of it is cut off.
    ///
    /// The scale of a letterbox is that of Ultralytics: the resized sides are rounded, and an odd row or column of the
    /// rest lies behind the picture.
    pub fn placement(&self, (picture_width, picture_height): (u32, u32)) -> Option<PicturePlacement> {
        let [height, width] = self.size;
        let centred = match self.fit {
            PictureFit::Stretch => return Some(PicturePlacement { left: 0, top: 0, width, height }),
            PictureFit::Crop { .. } => return None,
            PictureFit::Letterbox { centred, .. } => centred,
        };
        let scale = (f64::from(width) / f64::from(picture_width)).min(f64::from(height) / f64::from(picture_height));
        let (width_inside, height_inside) =
            (resized_side(picture_width, scale, width), resized_side(picture_height, scale, height));
        let (left, top) = if centred { ((width - width_inside) / 2, (height - height_inside) / 2) } else { (0, 0) };
        Some(PicturePlacement { left, top, width: width_inside, height: height_inside })
    }

    /// The width and height to which a photograph of this width and height is resized, before a part of it is cut out.
    pub fn resized_size(&self, size: (u32, u32)) -> (u32, u32) {
        match (self.fit, self.placement(size)) {
            (PictureFit::Crop { shorter_side }, _) => {
                let [height, width] = with_shorter_side(size, shorter_side);
                (u32::try_from(width).unwrap_or(u32::MAX), u32::try_from(height).unwrap_or(u32::MAX))
            }
            (_, Some(PicturePlacement { width, height, .. })) => (width, height),
            (_, None) => size,
        }
    }

    /// The pixels of the tensor, RGB.
    fn resized(&self, photograph: &Photograph) -> Result<Vec<u8>, PreparationError> {
        let [height, width] = self.size;
        match self.fit {
            PictureFit::Stretch => stretched(photograph, width, height),
            PictureFit::Crop { shorter_side } => self.cropped(photograph, shorter_side),
            PictureFit::Letterbox { gray, .. } => {
                let whole = PicturePlacement { left: 0, top: 0, width, height };
                let placement = self.placement(photograph.size()).unwrap_or(whole);
                let inside = stretched(photograph, placement.width, placement.height)?;
                Ok(padded(&inside, placement, self.size, gray))
            }
        }
    }

    /// The middle of the picture, resized until its shorter side has this length.
    fn cropped(&self, photograph: &Photograph, shorter_side: u32) -> Result<Vec<u8>, PreparationError> {
        let [crop_height, crop_width] = self.size;
        let [height, width] = with_shorter_side(photograph.size(), shorter_side);
        let too_large = || PreparationError::Crop { crop_height, crop_width, height, width };
        let top = centre_offset(height, crop_height).ok_or_else(too_large)?;
        let left = centre_offset(width, crop_width).ok_or_else(too_large)?;

        // Only the part inside the crop is resized: the same weights on the same pixels as resizing all and cutting
        // after, without the time and the buffer that the rest of a long picture would take.
        let (left, shown_width) = source_span(left, crop_width, width, photograph.size().0);
        let (top, shown_height) = source_span(top, crop_height, height, photograph.size().1);
        let shown = part(photograph, (left, top, shown_width, shown_height));
        resize(&mut Resizer::new(), &source(photograph.image())?, crop_width, crop_height, &shown)
    }

    /// Normalises and lays out the tensor's pixels.
    fn tensor<T: TensorElement + Copy>(
        &self,
        pixels: &[u8],
        convert: impl Fn(f32) -> T,
    ) -> Result<Tensor, PreparationError> {
        let [height, width] = self.size.map(|side| side as usize);
        let pixels = pixels.as_chunks::<3>().0;
        let mut elements = Vec::with_capacity(pixels.len() * 3);
        let [first, second, third] = self.tables(convert);
        // Channels of a picture are red, green, blue; a BGR tensor's first channel is the picture's third.
        let order = |&[red, green, blue]: &[u8; 3]| match self.color {
            ChannelOrder::Rgb => [red, green, blue],
            ChannelOrder::Bgr => [blue, green, red],
        };
        let shape = match self.layout {
            TensorLayout::Nchw => {
                elements.extend(pixels.iter().map(|pixel| first.element(order(pixel)[0])));
                elements.extend(pixels.iter().map(|pixel| second.element(order(pixel)[1])));
                elements.extend(pixels.iter().map(|pixel| third.element(order(pixel)[2])));
                vec![1, 3, height, width]
            }
            TensorLayout::Nhwc => {
                elements.extend(pixels.iter().flat_map(|pixel| {
                    let [a, b, c] = order(pixel);
                    [first.element(a), second.element(b), third.element(c)]
                }));
                vec![1, height, width, 3]
            }
        };
        Ok(Tensor::from_vec(shape, elements)?)
    }

    /// The element for each of the 256 pixel values, for each channel of the tensor.
    fn tables<T: Copy>(&self, convert: impl Fn(f32) -> T) -> [PixelLookupTable<T>; 3] {
        let ([m0, m1, m2], [s0, s1, s2]) = (self.mean, self.std);
        [(m0, s0), (m1, s1), (m2, s2)].map(|(mean, std)| {
            let value = |pixel: usize| convert((f32::from(u8::try_from(pixel).unwrap_or(u8::MAX)) - mean) / std);
            PixelLookupTable { values: std::array::from_fn(value), last: value(255) }
        })
    }
}

/// The element for each pixel value.
struct PixelLookupTable<T> {
    values: [T; 256],
    /// The last value again, as the default of a lookup.
    last: T,
}

impl<T: Copy> PixelLookupTable<T> {
    fn element(&self, pixel: u8) -> T {
        self.values.get(usize::from(pixel)).copied().unwrap_or(self.last)
    }
}

/// The pixels of a photograph for the library.
fn source(image: &Rgb8Image) -> Result<TypedImageRef<'_, U8x3>, ImageBufferError> {
    TypedImageRef::from_buffer(image.width(), image.height(), image.pixels())
}

fn bilinear() -> ResizeOptions {
    ResizeOptions::new().resize_alg(ResizeAlg::Convolution(FilterType::Bilinear))
}

/// Resizes a part of a photograph: left, top, width and height, in pixels of the photograph.
fn part(photograph: &Photograph, area: (f64, f64, f64, f64)) -> ResizeOptions {
    let (left, top, width, height) = photograph.in_image(area);
    bilinear().crop(left, top, width, height)
}

/// The RGB pixels of the whole picture, resized to this width and height.
fn stretched(photograph: &Photograph, width: u32, height: u32) -> Result<Vec<u8>, PreparationError> {
    let (image, mut resizer) = (photograph.image(), Resizer::new());
    let source = source(image)?;
    // The library resizes heights first. Where the height grows while the width shrinks, its buffer would be larger
    // than both pictures (65,535x1, for example), so here the width goes first. No side of a scaled photograph grows.
    if image.height() < height && image.width() > width {
        let narrow = resize(&mut resizer, &source, width, image.height(), &bilinear())?;
        let narrow = TypedImageRef::from_buffer(width, image.height(), &narrow)?;
        return resize(&mut resizer, &narrow, width, height, &bilinear());
    }
    let (full_width, full_height) = photograph.size();
    let whole = part(photograph, (0.0, 0.0, full_width.into(), full_height.into()));
    resize(&mut resizer, &source, width, height, &whole)
}

/// A picture of `size` (height, width) that is gray around the pixels at `placement`.
fn padded(pixels: &[u8], placement: PicturePlacement, [height, width]: [u32; 2], gray: u8) -> Vec<u8> {
    let mut all = vec![gray; width as usize * height as usize * 3];
    let rows = all.chunks_exact_mut(width as usize * 3).skip(placement.top as usize);
    let (left, length) = (placement.left as usize * 3, placement.width as usize * 3);
    for (row, inside) in rows.zip(pixels.chunks_exact(length)) {
        if let Some(part) = row.get_mut(left..left + length) {
            part.copy_from_slice(inside);
        }
    }
    all
}

/// A side after the resize by `scale`: at least one pixel, at most `most`.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the cast saturates")]
fn resized_side(side: u32, scale: f64, most: u32) -> u32 {
    ((f64::from(side) * scale).round_ties_even() as u32).clamp(1, most)
}

/// Resizes into a new picture of RGB pixels. The type of the pixels is fixed at compile time: otherwise the compiler
/// would generate the code of every type that the library has.
fn resize(
    resizer: &mut Resizer,
    source: &impl ImageView<Pixel = U8x3>,
    width: u32,
    height: u32,
    options: &ResizeOptions,
) -> Result<Vec<u8>, PreparationError> {
    let mut pixels = vec![0; width as usize * height as usize * 3];
    let mut target = TypedImage::<U8x3>::from_buffer(width, height, &mut pixels)?;
    resizer.resize_typed(source, &mut target, options)?;
    Ok(pixels)
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the cast keeps to 0..=255, NaN is 0")]
fn saturating_u8(value: f32) -> u8 {
    value.round_ties_even() as u8
}

#[expect(clippy::cast_possible_truncation, reason = "the cast keeps to -128..=127, NaN is 0")]
fn saturating_i8(value: f32) -> i8 {
    value.round_ties_even() as i8
}

/// Height and width after the resize: torchvision's `int(size * long / short)` for the longer side.
fn with_shorter_side((width, height): (u32, u32), shorter_side: u32) -> [u64; 2] {
    let (width, height) = (u64::from(width), u64::from(height));
    let side = u64::from(shorter_side);
    if width <= height { [side * height / width.max(1), side] } else { [side, side * width / height.max(1)] }
}

/// The start of a centred crop: half the difference, rounded to even as by Python's `round`. `None` if the crop is
/// larger.
fn centre_offset(side: u64, crop: u32) -> Option<u64> {
    let difference = side.checked_sub(u64::from(crop))?;
    let half = difference / 2;
    Some(if difference % 2 == 1 { half + half % 2 } else { half })
}

/// The part of a source side that becomes `length` pixels of the resized side, from `start` on: its start and its
/// length, both in source pixels.
#[expect(clippy::cast_precision_loss, reason = "sides are far below 2^52")]
fn source_span(start: u64, length: u32, resized: u64, source: u32) -> (f64, f64) {
    let scale = f64::from(source) / resized as f64;
    let start = start as f64 * scale;
    (start, (f64::from(length) * scale).min(f64::from(source) - start))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PLAIN: ImagePreparation = ImagePreparation {
        fit: PictureFit::Stretch,
        size: [1, 2],
        mean: [0.0; 3],
        std: [1.0; 3],
        layout: TensorLayout::Nhwc,
        color: ChannelOrder::Rgb,
    };

    fn picture(width: u32, height: u32) -> Photograph {
        let pixel = |x: u32, y: u32, channel: u32| u8::try_from((x * 29 + y * 53 + channel * 97) % 256).unwrap();
        let pixels = (0..height).flat_map(|y| (0..width).flat_map(move |x| (0..3).map(move |c| pixel(x, y, c))));
        photograph(width, height, pixels.collect())
    }

    fn photograph(width: u32, height: u32, pixels: Vec<u8>) -> Photograph {
        Rgb8Image::new(width, height, pixels).unwrap().into()
    }

    fn bytes(preparation: ImagePreparation, image: &Photograph) -> Vec<u8> {
        preparation.prepare(image, DataType::Uint8, None).unwrap().data().to_vec()
    }

    /// Asserts that no byte differs by more than `tolerance`.
    fn check_close(got: &[u8], expected: &[u8], tolerance: u8) {
        assert_eq!(got.len(), expected.len());
        let farthest = got.iter().zip(expected).map(|(got, want)| got.abs_diff(*want)).max();
        assert!(farthest <= Some(tolerance), "{got:?}\nis {farthest:?} from\n{expected:?}");
    }

    #[test]
    fn resize_and_crop_agree_with_pillow() {
        // Image.resize((8, 6), BILINEAR).crop((2, 0, 7, 5)): 11x8 with the shorter side 6, round(1.5) and round(0.5).
        let pillow = [
            101, 186, 77, 142, 165, 80, 177, 89, 118, 156, 62, 159, 102, 102, 199, 165, 114, 103, 206, 51, 144, 160,
            85, 182, 48, 126, 195, 69, 166, 135, 186, 75, 169, 95, 116, 191, 84, 154, 127, 98, 176, 91, 138, 137, 76,
            70, 148, 150, 92, 189, 59, 130, 178, 76, 171, 60, 109, 178, 64, 149, 121, 198, 59, 162, 135, 100, 195, 89,
            138, 132, 82, 179, 94, 122, 160,
        ];
        let preparation = ImagePreparation { fit: PictureFit::Crop { shorter_side: 6 }, size: [5, 5], ..PLAIN };
        check_close(&bytes(preparation, &picture(11, 8)), &pillow, 1);
        // Image.resize((4, 5), BILINEAR), the aspect lost.
        let pillow = [
            55, 152, 159, 128, 159, 91, 156, 82, 144, 73, 120, 188, 135, 137, 91, 175, 81, 144, 100, 126, 164, 103,
            168, 102, 169, 67, 153, 100, 132, 148, 116, 148, 88, 179, 77, 125, 78, 143, 126, 120, 172, 80, 165, 97,
            134, 109, 111, 164, 126, 173, 64, 164, 90, 137, 87, 118, 146, 94, 191, 67,
        ];
        check_close(&bytes(ImagePreparation { size: [5, 4], ..PLAIN }, &picture(11, 8)), &pillow, 1);
    }

    #[test]
    fn offsets_round_to_even_as_in_python() {
        assert_eq!(
            [centre_offset(10, 10), centre_offset(11, 10), centre_offset(12, 10), centre_offset(13, 10)],
            [Some(0), Some(0), Some(1), Some(2)]
        );
        assert_eq!(centre_offset(9, 10), None);
    }

    #[test]
    fn layout_and_colour_order_are_those_asked_for() {
        let image = photograph(2, 1, vec![1, 2, 3, 4, 5, 6]);
        assert_eq!(bytes(PLAIN, &image), [1, 2, 3, 4, 5, 6]);
        assert_eq!(bytes(ImagePreparation { color: ChannelOrder::Bgr, ..PLAIN }, &image), [3, 2, 1, 6, 5, 4]);
        let planes = ImagePreparation { layout: TensorLayout::Nchw, ..PLAIN };
        assert_eq!(bytes(planes, &image), [1, 4, 2, 5, 3, 6]);
        assert_eq!(bytes(ImagePreparation { color: ChannelOrder::Bgr, ..planes }, &image), [3, 6, 2, 5, 1, 4]);
        assert_eq!(PLAIN.prepare(&image, DataType::Fp16, None).unwrap().shape(), [1, 1, 2, 3]);
        assert_eq!(planes.prepare(&image, DataType::Fp32, None).unwrap().shape(), [1, 3, 1, 2]);
    }

    #[test]
    fn mean_and_std_are_those_of_the_tensors_channels() {
        let image = photograph(2, 1, vec![10, 20, 30, 40, 50, 60]);
        let preparation = ImagePreparation { mean: [10.0, 20.0, 30.0], std: [1.0, 2.0, 4.0], ..PLAIN };
        let tensor = preparation.prepare(&image, DataType::Fp32, None).unwrap();
        assert_eq!(tensor.elements::<f32>().unwrap().as_ref(), [0.0, 0.0, 0.0, 30.0, 15.0, 7.5]);
        let tensor =
            ImagePreparation { color: ChannelOrder::Bgr, ..preparation }.prepare(&image, DataType::Fp16, None).unwrap();
        let halves = [20.0, 0.0, -5.0, 50.0, 15.0, 2.5].map(f16::from_f32);
        assert_eq!(tensor.elements::<f16>().unwrap().as_ref(), halves);
        let clamped = ImagePreparation { mean: [20.0, 0.0, 0.0], std: [1.0, 0.1, 4.0], ..PLAIN };
        assert_eq!(bytes(clamped, &image), [0, 200, 8, 20, 255, 15]);
    }

    #[test]
    fn a_datatype_that_pictures_do_not_become_is_an_error() {
        let error = PLAIN.prepare(&picture(2, 1), DataType::Int64, None).unwrap_err();
        assert_eq!(error.to_string(), "pictures become FP32, FP16, UINT8 or INT8 tensors, not INT64");
    }

    #[test]
    fn a_quantized_input_takes_pixels_or_what_is_worth_the_normalised_ones() {
        let image = photograph(2, 1, vec![0, 64, 127, 128, 200, 255]);
        let quantized = |preparation: ImagePreparation, datatype, quantization| {
            ledge_base::tensor::to_f64(&preparation.prepare(&image, datatype, quantization).unwrap()).unwrap()
        };
        let (unsigned, signed) = ([0.0, 64.0, 127.0, 128.0, 200.0, 255.0], [-128.0, -64.0, -1.0, 0.0, 72.0, 127.0]);
        let around = |zero_point| Some(Quantization { scale: 1.0 / 127.5, zero_point });
        // As for the float model with inputs from -1 to 1.
        let normalised = ImagePreparation { mean: [127.5; 3], std: [127.5; 3], ..PLAIN };
        for quantization in [None, around(128)] {
            assert_eq!(quantized(PLAIN, DataType::Uint8, quantization), unsigned);
            assert_eq!(quantized(PLAIN, DataType::Int8, quantization), signed);
        }
        for (got, want) in [
            (quantized(normalised, DataType::Uint8, around(128)), unsigned),
            (quantized(normalised, DataType::Int8, around(0)), signed),
        ] {
            // The zero point lies between two pixels.
            assert!(got.iter().zip(want).all(|(got, want)| (got - want).abs() <= 1.0), "{got:?} {want:?}");
        }
        assert_eq!(quantized(normalised, DataType::Uint8, None), [0.0, 0.0, 0.0, 0.0, 1.0, 1.0]);
    }

    #[test]
    fn a_crop_larger_than_the_resized_picture_is_an_error() {
        let preparation = ImagePreparation { fit: PictureFit::Crop { shorter_side: 4 }, size: [5, 4], ..PLAIN };
        let error = preparation.prepare(&picture(20, 10), DataType::Fp32, None).unwrap_err();
        assert_eq!(error.to_string(), "cannot crop 5x4 (height x width) from a picture resized to 4x8");
    }

    #[test]
    fn a_line_of_a_picture_fills_the_crop() {
        for (width, height) in [(65_535, 1), (1, 65_535)] {
            let image = photograph(width, height, vec![77; 65_535 * 3]);
            for fit in [PictureFit::Stretch, PictureFit::Crop { shorter_side: 4096 }] {
                let preparation = ImagePreparation { fit, size: [9, 7], ..PLAIN };
                assert_eq!(bytes(preparation, &image), [77; 9 * 7 * 3]);
            }
        }
    }

    #[test]
    fn a_letterbox_has_gray_beside_the_picture() {
        let boxed =
            |centred| ImagePreparation { fit: PictureFit::Letterbox { gray: 114, centred }, size: [3, 4], ..PLAIN };
        let image = photograph(2, 3, vec![200; 18]);
        let row = |gray_before: usize, gray_after: usize| {
            [vec![114; gray_before * 3], vec![200; 6], vec![114; gray_after * 3]].concat()
        };
        assert_eq!(bytes(boxed(true), &image), row(1, 1).repeat(3));
        assert_eq!(bytes(boxed(false), &image), row(0, 2).repeat(3));
        let placed = boxed(true).placement((2, 3));
        assert_eq!(placed, Some(PicturePlacement { left: 1, top: 0, width: 2, height: 3 }));
        // As Ultralytics places 1920x1080 in 640x640.
        let yolo = ImagePreparation { size: [640, 640], ..boxed(true) };
        assert_eq!(yolo.placement((1920, 1080)), Some(PicturePlacement { left: 0, top: 140, width: 640, height: 360 }));
    }

    proptest! {
        #[test]
        fn a_letterbox_holds_a_picture_of_any_size(
            width in 1_u32..70_000, height in 1_u32..70_000, rows in 1_u32..700, columns in 1_u32..700, centred: bool,
        ) {
            let preparation =
                ImagePreparation { fit: PictureFit::Letterbox { gray: 0, centred }, size: [rows, columns], ..PLAIN };
            let PicturePlacement { left, top, width, height } = preparation.placement((width, height)).unwrap();
            prop_assert!(width > 0 && height > 0 && left + width <= columns && top + height <= rows);
            prop_assert!(width == columns || height == rows);
        }

        #[test]
        fn resizing_the_crop_alone_gives_what_cropping_the_whole_gives(
            width in 1_u32..60, height in 1_u32..60, side in 1_u32..50, (rows, columns) in (1_u32..50, 1_u32..50),
        ) {
            let image = picture(width, height);
            let (rows, columns) = (rows.min(side), columns.min(side));
            let [full_height, full_width] = with_shorter_side((width, height), side);
            let full = [u32::try_from(full_height).unwrap(), u32::try_from(full_width).unwrap()];
            let whole = bytes(ImagePreparation { size: full, ..PLAIN }, &image);
            let crop = ImagePreparation { fit: PictureFit::Crop { shorter_side: side }, size: [rows, columns], ..PLAIN };
            let top = usize::try_from(centre_offset(full_height, rows).unwrap()).unwrap();
            let left = usize::try_from(centre_offset(full_width, columns).unwrap()).unwrap();
            let rows_of_whole = whole.chunks(full[1] as usize * 3).skip(top).take(rows as usize);
            let cut: Vec<u8> =
                rows_of_whole.flat_map(|row| row[left * 3..(left + columns as usize) * 3].to_vec()).collect();
            // Each is within 1 of the exact value; see `prepare`.
            check_close(&bytes(crop, &image), &cut, 2);
        }
    }
}
