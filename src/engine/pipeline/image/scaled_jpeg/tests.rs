#![expect(clippy::cast_precision_loss, clippy::cast_possible_truncation, reason = "small numbers")]

mod encoder;

use ledge_base::memory_budget::MemoryAccount;
use ledge_base::tensor::DataType;
use proptest::prelude::*;

use self::encoder::{JpegEncoding, encode};
use super::super::{DecodeLimits, Photograph, decode as decode_whole, decode_within};
use super::*;
use crate::pipeline::preparation::{ChannelOrder, ImagePreparation, PictureFit, TensorLayout};

const SCALES: [JpegScale; 3] = [JpegScale::Half, JpegScale::Quarter, JpegScale::Eighth];

/// In colour with 4:2:0, and gray.
const PHOTOGRAPHS: [&[u8]; 2] = [
    include_bytes!("../../../../../tests/data/photos/chelsea.jpg"),
    include_bytes!("../../../../../tests/data/photos/camera_orientation6.jpg"),
];

const PROGRESSIVE: &[u8] = include_bytes!("../../../../../tests/data/photos/cows.jpg");

const PLAIN: JpegEncoding = JpegEncoding { luma: Some(0x22), restart_interval: 0, step: 4, orientation: 1 };

/// A picture without details: two waves of each colour, of 100 pixels.
fn smooth(seed: u32) -> impl Fn(usize, usize) -> [f32; 3] + Copy {
    move |x, y| {
        let wave = |number: u32| {
            let turn = f64::from(seed.wrapping_mul(2_654_435_761).wrapping_add(number * 40_503) % 6283) / 1000.0;
            let (x, y) = (x as f64 * turn.cos(), y as f64 * turn.sin());
            ((x + y) / 16.0 + turn * 7.0).sin() as f32
        };
        [0, 2, 4].map(|channel| 128.0 + 50.0 * wave(seed % 7 + channel) + 30.0 * wave(seed % 5 + channel + 1))
    }
}

/// The averages of the pixels that each pixel of a scaled picture stands for. Beyond the right and lower edge the last
/// ones count again, as encoders continue a picture.
fn averages(picture: &Rgb8Image, denominator: usize) -> Vec<u8> {
    let (width, height) = (picture.width() as usize, picture.height() as usize);
    let mut averages = Vec::new();
    for top in (0..height).step_by(denominator) {
        for left in (0..width).step_by(denominator) {
            for channel in 0..3 {
                let mut sum = denominator * denominator / 2;
                for y in (top..top + denominator).map(|y| y.min(height - 1)) {
                    for x in (left..left + denominator).map(|x| x.min(width - 1)) {
                        sum += usize::from(picture.pixels()[(y * width + x) * 3 + channel]);
                    }
                }
                averages.push(u8::try_from(sum / (denominator * denominator)).unwrap());
            }
        }
    }
    averages
}

/// The largest and the mean difference.
fn differences(one: &[u8], other: &[u8]) -> (u8, f64) {
    assert_eq!(one.len(), other.len());
    let all = one.iter().zip(other).map(|(one, other)| one.abs_diff(*other));
    (all.clone().max().unwrap(), all.map(f64::from).sum::<f64>() / one.len() as f64)
}

fn whole(file: &[u8]) -> Rgb8Image {
    decode_whole(file, DecodeLimits::default()).unwrap()
}

fn encodings() -> impl Strategy<Value = JpegEncoding> {
    let luma = prop::sample::select(vec![None, Some(0x11), Some(0x21), Some(0x22)]);
    (luma, 0_u16..5, 1_u8..6).prop_map(|(luma, restart_interval, step)| JpegEncoding {
        luma,
        restart_interval,
        step,
        orientation: 1,
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_scaled_picture_has_the_averages_of_the_whole_one(
        encoding in encodings(), width in 1_u16..80, height in 1_u16..80, seed: u32,
    ) {
        let file = encode((width, height), encoding, smooth(seed));
        let whole = whole(&file);
        for scale in SCALES {
            let scaled = decode(&file, scale).unwrap();
            prop_assert_eq!((scaled.width(), scaled.height()), scale.size((width.into(), height.into())));
            let (largest, mean) = differences(scaled.pixels(), &averages(&whole, scale.denominator() as usize));
            prop_assert!(largest <= 8 && mean <= 4.0, "{scale:?}: {largest}, {mean} on average");
        }
    }
}

/// The file with Exif data that says nothing.
fn not_turned(file: &[u8]) -> Vec<u8> {
    let mut file = file.to_vec();
    if let Some(at) = file.windows(6).position(|bytes| bytes == b"Exif\0\0") {
        file[at] = b'-';
    }
    file
}

#[test]
fn a_scaled_photograph_has_the_averages_of_the_whole_one() {
    for file in PHOTOGRAPHS.map(not_turned) {
        let whole = whole(&file);
        for scale in SCALES {
            let scaled = decode(&file, scale).unwrap();
            let (largest, mean) = differences(scaled.pixels(), &averages(&whole, scale.denominator() as usize));
            // Details that are cut off in one and averaged in the other.
            assert!(largest <= 32 && mean <= 1.5, "{scale:?}: {largest}, {mean} on average");
        }
    }
}

#[test]
fn the_scale_leaves_half_as_much_again_as_the_resize_needs() {
    let scale = |size, resized| JpegScale::for_resize(size, resized);
    assert_eq!(scale((1920, 1080), (320, 320)), Some(JpegScale::Half));
    assert_eq!(scale((1920, 1080), (320, 180)), Some(JpegScale::Quarter));
    assert_eq!(scale((3840, 2160), (320, 320)), Some(JpegScale::Quarter));
    assert_eq!(scale((4000, 3000), (299, 224)), Some(JpegScale::Eighth));
    assert_eq!(scale((960, 961), (320, 320)), Some(JpegScale::Half));
    assert_eq!(scale((960, 959), (320, 320)), None);
    assert_eq!(scale((u32::MAX, 1), (u32::MAX, 1)), None);
}

#[test]
fn a_scaled_picture_becomes_the_tensor_of_the_whole_one_however_it_is_turned() {
    for orientation in 1..=8 {
        for (width, height) in [(121, 83), (128, 96), (90, 113)] {
            let file = encode((width, height), JpegEncoding { orientation, ..PLAIN }, smooth(orientation.into()));
            let whole = Photograph::from(whole(&file));
            for (fit, size, denominator) in [
                (PictureFit::Stretch, [5, 6], 8),
                (PictureFit::Stretch, [13, 12], 4),
                (PictureFit::Letterbox { gray: 9, centred: true }, [12, 15], 4),
                (PictureFit::Crop { shorter_side: 26 }, [24, 11], 2),
            ] {
                let preparation = ImagePreparation {
                    fit,
                    size,
                    mean: [0.0; 3],
                    std: [1.0; 3],
                    layout: TensorLayout::Nhwc,
                    color: ChannelOrder::Rgb,
                };
                let decoded = decode_within(
                    &file,
                    DecodeLimits::default(),
                    &|size| preparation.resized_size(size),
                    &mut MemoryAccount::unlimited().hold(),
                );
                let scaled = decoded.unwrap();
                assert_eq!((scaled.size(), scaled.denominator), (whole.size(), denominator), "{fit:?}");
                let bytes =
                    |photograph| preparation.prepare(photograph, DataType::Uint8, None).unwrap().data().to_vec();
                let (largest, mean) = differences(&bytes(&scaled), &bytes(&whole));
                assert!(largest <= 7 && mean <= 1.2, "{orientation} {fit:?}: {largest}, {mean} on average");
            }
        }
    }
}

#[test]
fn a_file_that_is_not_plain_is_left_to_the_library() {
    let file = encode((40, 30), PLAIN, smooth(1));
    let with = |from: &[u8], to: &[u8]| {
        let at = file.windows(from.len()).position(|bytes| bytes == from).unwrap();
        [&file[..at], to, &file[at + from.len()..]].concat()
    };
    assert!(decode(&file, JpegScale::Half).is_some());
    let frame = b"\xFF\xC0\0\x11\x08\0\x1E\0\x28\x03\x01\x22\0\x02\x11\0\x03\x11\0";
    let changed = |at: usize, byte: u8| {
        let mut changed = frame.to_vec();
        changed[at] = byte;
        with(frame, &changed)
    };
    for (why, file) in [
        ("progressive", PROGRESSIVE.to_vec()),
        ("12 bits", changed(4, 12)),
        ("RGB", with(b"\xFF\xDB", b"\xFF\xEE\0\x0EAdobe\0\x64\0\0\0\0\0\xFF\xDB")),
        ("a third of the colours", changed(11, 0x31)),
        ("no quantization table", changed(12, 1)),
        ("bytes before the end", [&file[..file.len() - 2], b"\0\xFF\xD9"].concat()),
        ("no end", file[..file.len() - 2].to_vec()),
    ] {
        assert!(decode(&file, JpegScale::Half).is_none(), "{why}");
    }
}

/// Files with all kinds of sampling, and with restart markers.
fn small_files() -> [Vec<u8>; 4] {
    let lumas = [None, Some(0x11), Some(0x21), Some(0x22)];
    let file = |luma| encode((67, 50), JpegEncoding { luma, restart_interval: 3, ..PLAIN }, smooth(5));
    lumas.map(file)
}

#[test]
fn a_picture_that_is_cut_off_and_got_an_end_is_left_to_the_library() {
    for file in small_files() {
        let scan = file.windows(2).position(|bytes| bytes == b"\xFF\xDA").unwrap();
        for length in (0..scan).step_by(9).chain(scan..file.len() - 2) {
            let cut = [&file[..length], b"\xFF\xD9"].concat();
            // The last byte before the end may hold no more than the padding.
            assert!(decode(&cut, JpegScale::Quarter).is_none() || length + 3 == file.len(), "{length}");
        }
    }
}

#[test]
fn a_damaged_picture_is_left_to_the_library_or_is_the_one_that_the_library_decodes() {
    let mut state = 1_u64;
    let mut random = |below: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % below
    };
    let mut accepted = 0;
    for file in small_files().into_iter().chain(PHOTOGRAPHS.map(not_turned)) {
        let is_small = file.len() < 4000;
        // With other quantization, a picture can have frequencies that none has: their averages would be arbitrary.
        let is_quantization = |bytes: &[u8]| bytes == b"\xFF\xDB";
        let quantization = file.windows(2).position(is_quantization).unwrap();
        let behind = file.windows(2).rposition(is_quantization).unwrap() + 69;
        for round in 0..if is_small { 600 } else { 60 } {
            let mut damaged = file.clone();
            for _ in 0..=random(3) {
                let at = random(if round % 2 == 0 { 700.min(file.len()) } else { file.len() });
                if !(quantization..behind).contains(&at) {
                    damaged[at] = u8::try_from(random(256)).unwrap();
                }
            }
            let resized = [(2, 2), (15, 15), (20, 16)][round % 3];
            let limits = DecodeLimits { max_pixels: 1 << 20 };
            let Ok(scaled) = decode_within(&damaged, limits, &|_| resized, &mut MemoryAccount::unlimited().hold())
            else {
                continue;
            };
            if scaled.denominator > 1 {
                accepted += 1;
                let whole = decode_whole(&damaged, limits).expect("the library accepts it");
                assert_eq!(scaled.size(), (whole.width(), whole.height()));
                let (_, mean) = differences(scaled.image().pixels(), &averages(&whole, scaled.denominator as usize));
                assert!(mean <= 4.0, "{mean} on average");
            }
        }
    }
    assert!(accepted > 100, "{accepted}");
}

#[test]
fn a_scaled_picture_takes_the_memory_of_its_own_size() {
    let file = encode((200, 120), PLAIN, smooth(2));
    let held = |file: &[u8], resized: (u32, u32)| {
        let mut hold = MemoryAccount::unlimited().hold();
        decode_within(file, DecodeLimits::default(), &|_| resized, &mut hold).unwrap();
        hold.bytes()
    };
    assert_eq!(held(&file, (10, 10)), 25 * 15 * 3);
    assert_eq!(held(&file, (200, 120)), 200 * 120 * 3);
    let not_plain = [&file[..file.len() - 2], b"\0\xFF\xD9"].concat();
    assert_eq!(held(&not_plain, (10, 10)), 200 * 120 * 3, "the library decodes it as a whole");
    let limits = DecodeLimits { max_pixels: 200 * 120 - 1 };
    let refused = decode_within(&file, limits, &|_| (10, 10), &mut MemoryAccount::unlimited().hold());
    assert!(refused.is_err(), "the limit is for the size of the photograph");
}
