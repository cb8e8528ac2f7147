//! The fixtures are Pillow's unless a test makes them.

use flate2::Crc;
use image::codecs::png::PngEncoder;
use image::codecs::webp::WebPEncoder;
use image::{ExtendedColorType, ImageEncoder as _};
use proptest::prelude::*;

use super::*;

/// 24x16, a gradient, 4:2:0.
const JPEG: &[u8] = b"\
    \xFF\xD8\xFF\xE0\0\x10JFIF\0\x01\x01\0\0\x01\0\x01\0\0\xFF\xDB\0C\0\x1B\x12\x14\x17\x14\x11\x1B\x17\x16\x17\
    \x1E\x1C\x1B\x20(B+(%%(Q:=0B`Ued_U][jx\x99\x81jq\x90s[]\x85\xB5\x86\x90\x9E\xA3\xAB\xAD\xABg\x80\xBC\xC9\xBA\
    \xA6\xC7\x99\xA8\xAB\xA4\xFF\xDB\0C\x01\x1C\x1E\x1E(#(N++N\xA4n]n\xA4\xA4\xA4\xA4\xA4\xA4\xA4\xA4\xA4\xA4\xA4\
    \xA4\xA4\xA4\xA4\xA4\xA4\xA4\xA4\xA4\xA4\xA4\xA4\xA4\xA4\xA4\xA4\xA4\xA4\xA4\xA4\xA4\xA4\xA4\xA4\xA4\xA4\xA4\
    \xA4\xA4\xA4\xA4\xA4\xA4\xA4\xA4\xA4\xA4\xA4\xA4\xFF\xC0\0\x11\x08\0\x10\0\x18\x03\x01\"\0\x02\x11\x01\x03\x11\
    \x01\xFF\xC4\0\x16\0\x01\x01\x01\0\0\0\0\0\0\0\0\0\0\0\0\0\x04\x05\0\xFF\xC4\0\x1B\x10\0\x01\x05\x01\x01\0\0\0\
    \0\0\0\0\0\0\0\0\0\x01\x02\x03\x04a\x11!\xFF\xC4\0\x16\x01\x01\x01\x01\0\0\0\0\0\0\0\0\0\0\0\0\0\x03\x01\x05\
    \xFF\xC4\0\x1A\x11\0\x03\0\x03\x01\0\0\0\0\0\0\0\0\0\0\0\0\x01\x02\x03\x04\x11\x12\xFF\xDA\0\x0C\x03\x01\0\x02\
    \x11\x03\x11\0?\0\x8C\xCA\xF8!\x95\xB0tu\xF0Tu\xB0\x18~\x83\xC5\xB0Oe\\1a\xB0#|\xE7T\xC5u\x8A_\x1B4\xA3a\xF0\
    \xFF\xD9";

/// The same, progressive.
const PROGRESSIVE: &[u8] = b"\
    \xFF\xD8\xFF\xE0\0\x10JFIF\0\x01\x01\0\0\x01\0\x01\0\0\xFF\xDB\0C\0\x1B\x12\x14\x17\x14\x11\x1B\x17\x16\x17\
    \x1E\x1C\x1B\x20(B+(%%(Q:=0B`Ued_U][jx\x99\x81jq\x90s[]\x85\xB5\x86\x90\x9E\xA3\xAB\xAD\xABg\x80\xBC\xC9\xBA\
    \xA6\xC7\x99\xA8\xAB\xA4\xFF\xDB\0C\x01\x1C\x1E\x1E(#(N++N\xA4n]n\xA4\xA4\xA4\xA4\xA4\xA4\xA4\xA4\xA4\xA4\xA4\
    \xA4\xA4\xA4\xA4\xA4\xA4\xA4\xA4\xA4\xA4\xA4\xA4\xA4\xA4\xA4\xA4\xA4\xA4\xA4\xA4\xA4\xA4\xA4\xA4\xA4\xA4\xA4\
    \xA4\xA4\xA4\xA4\xA4\xA4\xA4\xA4\xA4\xA4\xA4\xA4\xFF\xC2\0\x11\x08\0\x10\0\x18\x03\x01\"\0\x02\x11\x01\x03\x11\
    \x01\xFF\xC4\0\x16\0\x01\x01\x01\0\0\0\0\0\0\0\0\0\0\0\0\0\x03\x04\0\xFF\xC4\0\x16\x01\x01\x01\x01\0\0\0\0\0\0\
    \0\0\0\0\0\0\0\x02\0\x04\xFF\xDA\0\x0C\x03\x01\0\x02\x10\x03\x10\0\0\x01\x89\x1DA\x9FY\xAD?\xFF\xC4\0\x18\x10\
    \x01\0\x03\x01\0\0\0\0\0\0\0\0\0\0\0\0\0\x01\x02\x12\x11\xFF\xDA\0\x08\x01\x01\0\x01\x05\x02\xCB,\xA2\xA8\xAB\
    \x8F\xFF\xC4\0\x17\x11\0\x03\x01\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x01\x03\x02\xFF\xDA\0\x08\x01\x03\x01\x01?\x01\
    \xCD\x05C\xFF\xC4\0\x18\x11\0\x02\x03\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x01\x02\x11!\xFF\xDA\0\x08\x01\x02\x01\x01?\
    \x01Z\\Q\xFF\xC4\0\x14\x10\x01\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x20\xFF\xDA\0\x08\x01\x01\0\x06?\x02_\xFF\xC4\0\
    \x17\x10\x01\x01\x01\x01\0\0\0\0\0\0\0\0\0\0\0\0\x01\0\x10\x11\xFF\xDA\0\x08\x01\x01\0\x01?!!\x0D\x81\xCD\xFF\
    \xDA\0\x0C\x03\x01\0\x02\0\x03\0\0\0\x10\xF3\xEF\xFF\xC4\0\x16\x11\x01\x01\x01\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x01\
    \x11\xFF\xDA\0\x08\x01\x03\x01\x01?\x10V\xC7\xFF\xC4\0\x16\x11\x01\x01\x01\0\0\0\0\0\0\0\0\0\0\0\0\0\x01\0\x11\
    \xFF\xDA\0\x08\x01\x02\x01\x01?\x10qV-\xFF\xC4\0\x18\x10\x01\x01\x01\x01\x01\0\0\0\0\0\0\0\0\0\0\0\0a\x01\x11!\
    \xFF\xDA\0\x08\x01\x01\0\x01?\x10\x92i\x20\x8B\x1F\x1C\xEE\xBF\xFF\xD9";

/// 24x16 gray, a gradient, with a restart marker behind every second block.
const RESTARTS: &[u8] = b"\
    \xFF\xD8\xFF\xE0\0\x10JFIF\0\x01\x01\0\0\x01\0\x01\0\0\xFF\xDB\0C\0\x0D\x09\x0A\x0B\x0A\x08\x0D\x0B\x0A\x0B\
    \x0E\x0E\x0D\x0F\x13\x20\x15\x13\x12\x12\x13'\x1C\x1E\x17\x20.)10.)-,3:J>36F7,-@WAFLNRSR2>ZaZP`JQRO\xFF\xC0\0\
    \x0B\x08\0\x10\0\x18\x01\x01\x11\0\xFF\xC4\0\x17\0\x01\0\x03\0\0\0\0\0\0\0\0\0\0\0\0\0\x06\x04\x05\x07\xFF\
    \xC4\0!\x10\0\0\x06\x02\x02\x03\x01\0\0\0\0\0\0\0\0\0\0\x01\x04\x05!1\x02\x11\x03\x06\x15#AC\xFF\xDD\0\x04\0\
    \x02\xFF\xDA\0\x08\x01\x01\0\0?\0\x1C\xDA\x9A\xA0-mMP?\xFF\xD0P\xDA\x9A\xA0g\xED\xA9\xAA\x07\xFF\xD1\xB4mMP'\
    \xF6'?\x01\xD6\xF9\xD5\xF1\x9E\x94g\xE9O\x1F\xA6[\xD1\xD1\x94\x11\x1ES\x07\xAD}\x1F\xFF\xD9";

/// 24x16 gray, the left third black, the rest white; Exif says to turn it 90 degrees clockwise.
const TURNED: &[u8] = b"\
    \xFF\xD8\xFF\xE0\0\x10JFIF\0\x01\x01\0\0\x01\0\x01\0\0\xFF\xE1\0\"Exif\0\0MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\
    \0\0\0\x01\0\x06\0\0\0\0\0\0\xFF\xDB\0C\0\x0D\x09\x0A\x0B\x0A\x08\x0D\x0B\x0A\x0B\x0E\x0E\x0D\x0F\x13\x20\x15\
    \x13\x12\x12\x13'\x1C\x1E\x17\x20.)10.)-,3:J>36F7,-@WAFLNRSR2>ZaZP`JQRO\xFF\xC0\0\x0B\x08\0\x10\0\x18\x01\x01\
    \x11\0\xFF\xC4\0\x16\0\x01\x01\x01\0\0\0\0\0\0\0\0\0\0\0\0\0\x08\0\x07\xFF\xC4\0\x14\x10\x01\0\0\0\0\0\0\0\0\0\
    \0\0\0\0\0\0\0\xFF\xDA\0\x08\x01\x01\0\0?\0\xCC\x09\xD41\x13\xA9\xFF\xD9";

/// 8x8, no cyan, all magenta and yellow, no black: red.
const CMYK: &[u8] = b"\
    \xFF\xD8\xFF\xEE\0\x0EAdobe\0d\0\0\0\0\0\xFF\xDB\0C\0\x0D\x09\x0A\x0B\x0A\x08\x0D\x0B\x0A\x0B\x0E\x0E\x0D\x0F\
    \x13\x20\x15\x13\x12\x12\x13'\x1C\x1E\x17\x20.)10.)-,3:J>36F7,-@WAFLNRSR2>ZaZP`JQRO\xFF\xC0\0\x14\x08\0\x08\0\
    \x08\x04C\x11\0M\x11\0Y\x11\0K\x11\0\xFF\xC4\0\x14\0\x01\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x07\xFF\xC4\0\x14\x10\
    \x01\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\xFF\xDA\0\x0E\x04C\0M\0Y\0K\0\0?\0N\x18\x0C\x09\xCF\xFF\xD9";

/// 2x1: (10, 20, 30), then a transparent black.
const PALETTE: &[u8] = b"\
    \x89PNG\x0D\x0A\x1A\x0A\0\0\0\x0DIHDR\0\0\0\x02\0\0\0\x01\x01\x03\0\0\0\xCE\xEC\xED\xC9\0\0\0\x06PLTE\x0A\x14\
    \x1E\0\0\0!Z\x8BG\0\0\0\x02tRNS\xFF\0\xE5\xB70J\0\0\0\x0AIDATx\xDAcp\0\0\0B\0A\x84\xBF\x8Eb\0\0\0\0IEND\xAEB`\
    \x82";

/// 2x2, a red frame, then a blue one.
const ANIMATED_WEBP: &[u8] = b"\
    RIFF\x84\0\0\0WEBPVP8X\x0A\0\0\0\x02\0\0\0\x01\0\0\x01\0\0ANIM\x06\0\0\0\0\0\0\0\0\0ANMF(\0\0\0\0\0\0\0\0\0\
    \x01\0\0\x01\0\0\0\0\0\x02VP8L\x0F\0\0\0/\x01@\0\0\x07\x10\xFD\x8F\xFE\x07\"\xA2\xFF\x01\0ANMF(\0\0\0\0\0\0\0\
    \0\0\x01\0\0\x01\0\0\0\0\0\0VP8L\x0F\0\0\0/\x01@\0\0\x07\x10\xD1\xFF\xFE\x07\"\xA2\xFF\x01\0";

/// The same.
const APNG: &[u8] = b"\
    \x89PNG\x0D\x0A\x1A\x0A\0\0\0\x0DIHDR\0\0\0\x02\0\0\0\x02\x08\x02\0\0\0\xFD\xD4\x9As\0\0\0\x08acTL\0\0\0\x02\0\
    \0\0\0\xF3\x8D\x93p\0\0\0\x1AfcTL\0\0\0\0\0\0\0\x02\0\0\0\x02\0\0\0\0\0\0\0\0\0\0\0\x01\0\0\xD9a\x1AQ\0\0\0\
    \x16IDATx\x9Cc\xFC\xCF\xC0\xC0\xC0\xC0\xC0\xC4\xC0\xC0\xC0\xC0\xC0\0\0\x0D\x1D\x01\x03j\xC2\x9B\xE9\0\0\0\x1Af\
    cTL\0\0\0\x01\0\0\0\x02\0\0\0\x02\0\0\0\0\0\0\0\0\0\0\0\x01\0\0B\x12\xF0\x85\0\0\0\x1AfdAT\0\0\0\x02x\x9Ccd`\
    \xF8\xCF\xC0\xC0\xC0\xC4\xC0\xC0\xC0\xC0\xC0\0\0\x0B\x1F\x01\x039\xA0\x0D\x0F\0\0\0\0IEND\xAEB`\x82";

/// 24x16, a gradient.
const LOSSY_WEBP: &[u8] = b"\
    RIFFh\0\0\0WEBPVP8\x20\\\0\0\0\xF0\x03\0\x9D\x01*\x18\0\x10\0?9\x8A\xBAS\xB4\xA9\xA5\xA2\xB0\x08\x02\x90'\x09l\
    \0\x9D2\x84p\0\x84\xE8\xC9`\x16^\xD6\0\0\xFE\xF9.\xD2R\x1A\xC1\xAB\xB5.\xC9=C\x85#\xB5\x1A\xEB\xBB\x9D\x8E\xF6\
    \xC1j\xF1\xCE\x869\x06\xBCm\x95Z\xBC,RY[\xBC\xD1\xF7rsRm_o\xAC\xC0\0\0";

fn decoded(bytes: &[u8]) -> Rgb8Image {
    decode(bytes, DecodeLimits::default()).unwrap()
}

fn png(pixels: &[u8], width: u32, height: u32, color: ExtendedColorType) -> Vec<u8> {
    let mut bytes = Vec::new();
    PngEncoder::new(&mut bytes).write_image(pixels, width, height, color).unwrap();
    bytes
}

fn webp(pixels: &[u8], width: u32, height: u32, color: ExtendedColorType) -> Vec<u8> {
    let mut bytes = Vec::new();
    WebPEncoder::new_lossless(&mut bytes).encode(pixels, width, height, color).unwrap();
    bytes
}

/// A picture of noise, so that nothing of it can be left out.
fn noise(bytes: usize) -> Vec<u8> {
    let mut state = 1_u32;
    let next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    };
    std::iter::repeat_with(next).take(bytes).collect()
}

/// Asserts that a picture is these pixels, each channel within 6: JPEG is lossy.
fn check_pixel(picture: &Rgb8Image, x: u32, y: u32, expected: [u8; 3]) {
    let at = ((y * picture.width() + x) * 3) as usize;
    let got = &picture.pixels()[at..at + 3];
    assert!(got.iter().zip(expected).all(|(got, want)| got.abs_diff(want) <= 6), "{got:?} is not {expected:?}");
}

/// Asserts that every prefix shorter than `complete` bytes is an error.
fn check_cuts(bytes: &[u8], complete: usize) {
    assert!(decode(bytes, DecodeLimits::default()).is_ok());
    for length in 0..complete {
        let cut = decode(&bytes[..length], DecodeLimits::default());
        assert!(cut.is_err(), "{length} of {} bytes gave {cut:?}", bytes.len());
    }
}

#[test]
fn bytes_are_decoded_as_what_they_are() {
    assert_eq!(ImageFormat::sniff(JPEG), Some(ImageFormat::Jpeg));
    assert_eq!(ImageFormat::sniff(PALETTE), Some(ImageFormat::Png));
    assert_eq!(ImageFormat::sniff(LOSSY_WEBP), Some(ImageFormat::WebP));
    assert_eq!(ImageFormat::sniff(b"RIFF\0\0\0\0WAVE"), None);
    let error = decode(b"GIF89a", DecodeLimits::default()).unwrap_err();
    let expected = "expected a JPEG, PNG or WebP image, got a GIF image: convert it to JPEG, PNG or WebP";
    assert_eq!(error.to_string(), expected);
}

#[test]
fn a_jpeg_keeps_its_colours() {
    for picture in [decoded(JPEG), decoded(PROGRESSIVE)] {
        assert_eq!((picture.width(), picture.height()), (24, 16));
        assert_eq!(picture.pixels().len(), 24 * 16 * 3);
    }
    let red = decoded(CMYK);
    check_pixel(&red, 4, 4, [255, 0, 0]);
}

#[test]
fn a_turned_jpeg_is_set_upright() {
    let picture = decoded(TURNED);
    assert_eq!((picture.width(), picture.height()), (16, 24));
    check_pixel(&picture, 8, 2, [0; 3]);
    check_pixel(&picture, 8, 20, [255; 3]);
}

#[test]
fn what_is_transparent_becomes_white() {
    assert_eq!(decoded(PALETTE).pixels(), [10, 20, 30, 255, 255, 255]);
    let pixels = [0, 0, 0, 255, 0, 0, 0, 128, 9, 9, 9, 0];
    for bytes in [png(&pixels, 3, 1, ExtendedColorType::Rgba8), webp(&pixels, 3, 1, ExtendedColorType::Rgba8)] {
        assert_eq!(decoded(&bytes).pixels(), [0, 0, 0, 127, 127, 127, 255, 255, 255]);
    }
}

#[test]
fn gray_and_16_bits_become_rgb() {
    assert_eq!(decoded(&png(&[7, 200], 2, 1, ExtendedColorType::L8)).pixels(), [7, 7, 7, 200, 200, 200]);
    let deep = [0x00_u8, 0x00, 0xFF, 0xFF, 0x80, 0x80].map(u8::to_be);
    assert_eq!(decoded(&png(&deep, 1, 1, ExtendedColorType::Rgb16)).pixels(), [0, 255, 128]);
    let faint = [0_u8, 0, 0, 0].map(u8::to_be);
    assert_eq!(decoded(&png(&faint, 1, 1, ExtendedColorType::La16)).pixels(), [255; 3]);
}

#[test]
fn every_kind_of_pixel_is_decoded_as_the_crate_image_does() {
    let kinds = [
        (1, ExtendedColorType::L8),
        (2, ExtendedColorType::La8),
        (3, ExtendedColorType::Rgb8),
        (4, ExtendedColorType::Rgba8),
        (2, ExtendedColorType::L16),
        (4, ExtendedColorType::La16),
        (6, ExtendedColorType::Rgb16),
        (8, ExtendedColorType::Rgba16),
    ];
    let files = kinds.map(|(bytes, color)| png(&noise(50 * 40 * bytes), 50, 40, color));
    let lossless = [(3, ExtendedColorType::Rgb8), (4, ExtendedColorType::Rgba8)];
    let lossless = lossless.map(|(bytes, color)| webp(&noise(50 * 40 * bytes), 50, 40, color));
    for file in files.into_iter().chain(lossless) {
        let expected = image::load_from_memory(&file).unwrap();
        let has_alpha = expected.color().has_alpha();
        let expected = if has_alpha {
            blend_with_white(expected.into_rgba8().pixels().map(|pixel| pixel.0))
        } else {
            expected.into_rgb8().into_raw()
        };
        assert_eq!(decoded(&file).pixels(), expected);
    }
}

#[test]
fn of_an_animation_the_first_frame_counts() {
    for bytes in [ANIMATED_WEBP, APNG] {
        assert_eq!(decoded(bytes).pixels(), [255, 0, 0].repeat(4));
    }
}

#[test]
fn a_file_that_is_cut_off_is_never_a_picture() {
    // Of a JPEG, the end marker and the padding of its last byte hold nothing of the picture.
    for fixture in [JPEG, PROGRESSIVE, TURNED, CMYK, RESTARTS] {
        check_cuts(fixture, fixture.len() - 3);
    }
    check_cuts(LOSSY_WEBP, LOSSY_WEBP.len());
    check_cuts(ANIMATED_WEBP, ANIMATED_WEBP.len());
    let lossless = webp(&noise(300), 10, 10, ExtendedColorType::Rgb8);
    check_cuts(&lossless, lossless.len());
    // The last chunk of a PNG, 12 bytes, holds nothing of the picture.
    let noisy = png(&noise(300), 10, 10, ExtendedColorType::Rgb8);
    check_cuts(&noisy, noisy.len() - 12);
    assert_eq!(
        decode(&JPEG[..JPEG.len() / 2], DecodeLimits::default()),
        Err(ImageError::CutOff { format: ImageFormat::Jpeg })
    );
}

#[test]
fn a_cut_jpeg_with_an_end_marker_inside_its_thumbnail_is_still_cut() {
    let mut bytes = JPEG[..2].to_vec();
    bytes.extend_from_slice(b"\xFF\xEC\x00\x06\xFF\xD8\xFF\xD9");
    bytes.extend_from_slice(&JPEG[2..]);
    check_cuts(&bytes, bytes.len() - 3);
}

/// Photographs: baseline, in colour with 4:2:0 and gray.
const PHOTOGRAPHS: [&[u8]; 2] = [
    include_bytes!("../../../../tests/data/photos/chelsea.jpg"),
    include_bytes!("../../../../tests/data/photos/camera_orientation6.jpg"),
];

#[test]
fn a_jpeg_that_lacks_only_its_end_marker_is_the_same_picture() {
    for bytes in [JPEG, PROGRESSIVE, TURNED, CMYK, RESTARTS, PHOTOGRAPHS[0], PHOTOGRAPHS[1]] {
        let (whole, scans) = (decoded(bytes), &bytes[..bytes.len() - 2]);
        // As it is, with half of the marker, and in a buffer that is filled up.
        for tail in [&b""[..], b"\xFF", &[0; 1000], &[0xFF; 1000]] {
            assert_eq!(decoded(&[scans, tail].concat()), whole, "{} bytes and {} more", scans.len(), tail.len());
        }
    }
}

#[test]
fn a_photograph_cut_anywhere_is_refused_or_has_all_of_its_blocks() {
    for bytes in PHOTOGRAPHS {
        let whole = decoded(bytes);
        let mut accepted = 0;
        let at_the_end = bytes.len() - 300..bytes.len();
        for length in (3..bytes.len()).step_by(293).chain(at_the_end) {
            for tail in [&b""[..], &[0; 5000]] {
                match decode(&[&bytes[..length], tail].concat(), DecodeLimits::default()) {
                    Err(error) => assert_eq!(error, ImageError::CutOff { format: ImageFormat::Jpeg }, "{length}"),
                    // Only bits of the last coefficient of the last block may be lost.
                    Ok(picture) => {
                        accepted += 1;
                        let pixels = picture.pixels().iter().zip(whole.pixels());
                        let other = pixels.filter(|(got, want)| got != want).count();
                        assert!(length + 8 > bytes.len() && other <= 16 * 16 * 3, "{length}: {other} bytes differ");
                    }
                }
            }
        }
        assert!(accepted > 0);
    }
}

#[test]
fn an_image_that_was_sent_as_text_says_how_to_send_it() {
    let lossless = webp(&noise(300), 10, 10, ExtendedColorType::Rgb8);
    for bytes in [JPEG, PROGRESSIVE, &png(&noise(300), 10, 10, ExtendedColorType::Rgb8), &lossless, PHOTOGRAPHS[0]] {
        let kept: Vec<u8> = bytes.iter().copied().filter(|byte| !matches!(byte, 0 | b'\n' | b'\r')).collect();
        let error = decode(&kept, DecodeLimits::default()).unwrap_err().to_string();
        assert!(error.contains("curl --data-binary"), "{error}");
    }
}

#[test]
fn a_cut_jpeg_that_was_given_an_end_marker_is_still_cut() {
    for fixture in [JPEG, TURNED, CMYK] {
        let scan = fixture.windows(2).position(|pair| pair == b"\xFF\xDA").unwrap();
        // The very last byte may hold no more than padding.
        for length in scan..fixture.len() - 3 {
            let cut = decode(&[&fixture[..length], b"\xFF\xD9"].concat(), DecodeLimits::default());
            assert!(cut.is_err(), "{length} of {} bytes gave {cut:?}", fixture.len());
        }
    }
}

#[test]
fn bytes_after_the_picture_do_not_matter() {
    for bytes in [JPEG, PALETTE, LOSSY_WEBP] {
        assert_eq!(decoded(&[bytes, &[0xFF; 100]].concat()), decoded(bytes));
    }
}

#[test]
fn a_png_that_claims_ten_gigapixels_is_refused_from_its_header() {
    let mut bytes = b"\x89PNG\r\n\x1A\n".to_vec();
    let mut chunk = |id: &[u8], body: &[u8]| {
        bytes.extend_from_slice(&u32::try_from(body.len()).unwrap().to_be_bytes());
        let mut crc = Crc::new();
        crc.update(id);
        crc.update(body);
        bytes.extend_from_slice(id);
        bytes.extend_from_slice(body);
        bytes.extend_from_slice(&crc.sum().to_be_bytes());
    };
    chunk(b"IHDR", b"\0\x01\x86\xA0\0\x01\x86\xA0\x08\x02\0\0\0");
    chunk(b"IDAT", b"\x78\x9C");
    let error = decode(&bytes, DecodeLimits::default());
    assert_eq!(error, Err(ImageError::TooLarge { width: 100_000, height: 100_000, max_pixels: 52_000_000 }));
}

#[test]
fn a_jpeg_that_claims_four_gigapixels_is_refused_from_its_header() {
    for fixture in [JPEG, PROGRESSIVE] {
        let frame = fixture.windows(2).position(|pair| pair == b"\xFF\xC0" || pair == b"\xFF\xC2").unwrap();
        let mut bytes = fixture.to_vec();
        bytes[frame + 5..frame + 9].fill(0xFF);
        let error = decode(&bytes, DecodeLimits::default());
        assert_eq!(error, Err(ImageError::TooLarge { width: 65_535, height: 65_535, max_pixels: 52_000_000 }));
        bytes[frame + 5..frame + 9].fill(0);
        assert!(decode(&bytes, DecodeLimits::default()).is_err());
    }
}

#[test]
fn a_photograph_that_is_turned_upright_is_not_larger_than_before() {
    let turned = PHOTOGRAPHS[1];
    let picture = decode(turned, DecodeLimits::default()).unwrap();
    let max_pixels = u64::from(picture.width()) * u64::from(picture.height());
    assert_eq!(decode(turned, DecodeLimits { max_pixels }), Ok(picture));
    assert!(matches!(decode(turned, DecodeLimits { max_pixels: max_pixels - 1 }), Err(ImageError::TooLarge { .. })));
}

#[test]
fn a_small_file_that_inflates_is_refused_from_its_header() {
    let plain = vec![0; 1000 * 1001];
    for bytes in
        [png(&plain, 1000, 1001, ExtendedColorType::L8), webp(&plain.repeat(3), 1000, 1001, ExtendedColorType::Rgb8)]
    {
        assert!(bytes.len() < 8000);
        let limits = DecodeLimits { max_pixels: 1_000_000 };
        assert_eq!(
            decode(&bytes, limits),
            Err(ImageError::TooLarge { width: 1000, height: 1001, max_pixels: 1_000_000 })
        );
        assert!(decode(&bytes, DecodeLimits { max_pixels: 1_001_000 }).is_ok());
    }
}

#[test]
fn a_frame_larger_than_its_animations_canvas_is_refused() {
    let mut bytes = ANIMATED_WEBP.to_vec();
    let frame = bytes.windows(4).position(|id| id == b"VP8L").unwrap();
    bytes[frame + 9..frame + 13].copy_from_slice(&0x0FFF_FFFF_u32.to_le_bytes());
    let error = decode(&bytes, DecodeLimits::default());
    assert_eq!(error, Err(ImageError::TooLarge { width: 16_384, height: 16_384, max_pixels: 52_000_000 }));
}

#[test]
fn a_side_too_long_is_refused_though_the_area_is_small() {
    let line = png(&vec![0; 70_000], 70_000, 1, ExtendedColorType::L8);
    assert!(matches!(decode(&line, DecodeLimits::default()), Err(ImageError::TooLarge { width: 70_000, .. })));
}

/// Small files of every format.
fn any_file() -> impl Strategy<Value = Vec<u8>> {
    let lossless = webp(&noise(60), 5, 4, ExtendedColorType::Rgb8);
    let plain = png(&noise(60), 5, 4, ExtendedColorType::Rgb8);
    let files = [JPEG, PROGRESSIVE, TURNED, CMYK, PALETTE, ANIMATED_WEBP, APNG, LOSSY_WEBP, &lossless, &plain];
    prop::sample::select(files.map(<[u8]>::to_vec).to_vec())
}

proptest! {
    #[test]
    fn random_bytes_never_panic(bytes: Vec<u8>, format in 0_usize..4) {
        let magic: &[u8] = [&b""[..], b"\xFF\xD8\xFF", b"\x89PNG\r\n\x1A\n", b"RIFF\x40\0\0\0WEBP"][format];
        fuzz_image(&[magic, &bytes].concat());
    }

    #[test]
    fn a_damaged_file_is_a_whole_picture_or_an_error(
        mut bytes in any_file(),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
    ) {
        for (at, byte) in damage {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        if let Ok(picture) = decode(&bytes, DecodeLimits { max_pixels: 1 << 16 }) {
            prop_assert!(picture.width() > 0 && picture.height() > 0);
            prop_assert_eq!(picture.pixels().len() as u64, u64::from(picture.width()) * u64::from(picture.height()) * 3);
        }
    }
}
