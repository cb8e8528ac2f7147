use std::time::Instant;

use gif::{Encoder, Frame};
use image::codecs::bmp::BmpEncoder;
use image::{ExtendedColorType, ImageEncoder as _};
use proptest::prelude::*;

use super::*;

const WHITE: [u8; 3] = [255; 3];
const RED: [u8; 3] = [200, 10, 20];
const BLUE: [u8; 3] = [10, 20, 200];

fn pixels(file: &[u8]) -> Vec<[u8; 3]> {
    Bitmap::read(file).unwrap().pixels.as_chunks().0.to_vec()
}

/// A BMP with this header (BITMAPINFOHEADER), without a palette unless `data` begins with it.
fn bmp((width, height): (i32, i32), (bits, compression): (u16, u32), colors: u32, data: &[u8]) -> Vec<u8> {
    let mut file = b"BM\0\0\0\0\0\0\0\0".to_vec();
    file.extend((54 + 4 * colors).to_le_bytes());
    file.extend(40_u32.to_le_bytes());
    file.extend([width, height].iter().flat_map(|side| side.to_le_bytes()));
    file.extend([1, bits].iter().flat_map(|number| number.to_le_bytes()));
    // The compression, the bytes of the pixels, 11811 dots per metre twice, the colours, and the important ones.
    file.extend([compression, 0, 11_811, 11_811, colors, 0].iter().flat_map(|number| number.to_le_bytes()));
    [&file, data].concat()
}

/// Red and blue, as a palette has them.
const PALETTE: [u8; 8] = [20, 10, 200, 0, 200, 20, 10, 0];

fn gif((width, height): (u16, u16), frames: &[Frame<'_>]) -> Vec<u8> {
    let mut file = Vec::new();
    let mut encoder = Encoder::new(&mut file, width, height, &[RED, BLUE].concat()).unwrap();
    for frame in frames {
        encoder.write_frame(frame).unwrap();
    }
    drop(encoder);
    file
}

/// A frame of indexes of the palette.
fn frame((left, top): (u16, u16), (width, height): (u16, u16), indexes: &[u8]) -> Frame<'static> {
    Frame { left, top, width, height, buffer: indexes.to_vec().into(), ..Frame::default() }
}

#[test]
fn a_bmp_is_read_whatever_its_depth_and_compression() {
    let expected = [RED, BLUE, BLUE, RED];
    let rows = |lower: &[u8], upper: &[u8]| [&PALETTE[..], lower, upper].concat();
    for (kind, file) in [
        // Rows come from below, and are filled up to four bytes.
        ("1 bit", bmp((2, 2), (1, 0), 2, &rows(&[0x80, 0, 0, 0], &[0x40, 0, 0, 0]))),
        ("4 bits", bmp((2, 2), (4, 0), 2, &rows(&[0x10, 0, 0, 0], &[0x01, 0, 0, 0]))),
        ("8 bits", bmp((2, 2), (8, 0), 2, &rows(&[1, 0, 0, 0], &[0, 1, 0, 0]))),
        ("from the top", bmp((2, -2), (8, 0), 2, &rows(&[0, 1, 0, 0], &[1, 0, 0, 0]))),
        ("runs", bmp((2, 2), (8, 1), 2, &rows(&[1, 1, 1, 0, 0, 0], &[1, 0, 1, 1, 0, 1]))),
        ("runs of 4 bits", bmp((2, 2), (4, 2), 2, &rows(&[2, 0x10, 0, 0], &[2, 0x01, 0, 1]))),
    ] {
        assert_eq!(pixels(&file), expected, "{kind}");
    }
    let transparent = |alphas: [u8; 2]| {
        let masks = [0xFF_0000_u32, 0xFF00, 0xFF, 0xFF00_0000].iter().flat_map(|mask| mask.to_le_bytes());
        let samples = [20, 10, 200, alphas[0], 200, 20, 10, alphas[1]];
        let data: Vec<u8> = masks.chain([0; 52 + 16]).chain(samples).collect();
        let mut file = bmp((2, 1), (32, 3), 0, &data);
        // BITMAPV4HEADER: the masks are in the header.
        (file[14], file[10]) = (108, 54 + 68 + 16);
        file
    };
    assert_eq!(pixels(&transparent([255, 0])), [RED, WHITE]);
    // Without any opaque pixel the alphas mean nothing.
    assert_eq!(pixels(&transparent([0, 0])), [RED, BLUE]);
}

#[test]
fn of_a_gif_the_first_frame_is_read_on_white() {
    let whole = frame((0, 0), (2, 2), &[0, 1, 1, 0]);
    let second = frame((0, 0), (2, 2), &[1; 4]);
    assert_eq!(pixels(&gif((2, 2), &[whole.clone(), second])), [RED, BLUE, BLUE, RED]);

    let transparent = Frame { transparent: Some(1), ..whole.clone() };
    assert_eq!(pixels(&gif((2, 2), &[transparent])), [RED, WHITE, WHITE, RED]);
    // A frame of its own palette, and one that is smaller than the picture and reaches beyond it.
    let own = Frame { palette: Some([BLUE, RED].concat()), ..whole.clone() };
    assert_eq!(pixels(&gif((2, 2), &[own])), [BLUE, RED, RED, BLUE]);
    let beyond = frame((1, 1), (2, 2), &[0, 1, 1, 0]);
    assert_eq!(pixels(&gif((2, 2), &[beyond])), [WHITE, WHITE, WHITE, RED]);
    // An index without a colour.
    let unknown = frame((0, 0), (2, 2), &[0, 3, 3, 0]);
    assert_eq!(pixels(&gif((2, 2), &[unknown])), [RED, WHITE, WHITE, RED]);
}

#[test]
fn a_file_made_to_harm_is_refused_from_its_header() {
    let begun = Instant::now();
    let refused = |file: &[u8]| Bitmap::read(file).map(|_| ()).unwrap_err().to_string();
    let too_large = |file: &[u8], size: &str| {
        let error = refused(file);
        assert!(error.starts_with(&format!("page 1 has an image of {size} pixels")), "{error}");
    };
    too_large(&bmp((60_000, 60_000), (24, 0), 0, b"x"), "60000x60000");
    too_large(&bmp((65_535, -65_535), (8, 0), 2, &PALETTE), "65535x65535");
    too_large(&bmp((65_535, 65_535), (8, 1), 2, &PALETTE), "65535x65535");
    // The descriptor of a frame, and its codes.
    let frames = [b',', 0, 0, 0, 0, 0xFF, 0xFF, 0xFF, 0xFF, 0, 2, 1, 0x44, 0, b';'];
    let header = |side| gif((side, side), &[]).strip_suffix(b";").unwrap().to_vec();
    let huge = |side| [&header(side)[..], &frames].concat();
    too_large(&huge(65_535), "65535x65535");
    too_large(&huge(9), "65535x65535");
    for (file, reason) in [
        (bmp((i32::MAX, 1), (24, 0), 0, b"x"), "cannot be decoded"),
        (bmp((-4, 4), (24, 0), 0, b"x"), "cannot be decoded"),
        (bmp((1, i32::MIN), (24, 0), 0, b"x"), "cannot be decoded"),
        (bmp((0, 5), (24, 0), 0, b"x"), "cannot be decoded"),
        (bmp((5, 0), (24, 0), 0, b"x"), "cannot be decoded"),
        (bmp((100, 100), (24, 0), 0, b"x"), "it is cut off"),
        (bmp((100, 100), (8, 1), 2, &[&PALETTE[..], &[200, 1, 0, 9]].concat()), "it is cut off"),
        // Runs beyond the end of a row, and steps beyond the last row.
        (bmp((2, 2), (4, 2), 2, &[&PALETTE[..], &[200, 1, 0, 1]].concat()), "cannot be decoded"),
        (bmp((2, 2), (8, 1), 2, &[&PALETTE[..], &[0, 9, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0]].concat()), "cannot be decoded"),
        (bmp((2, 2), (8, 1), 2, &[&PALETTE[..], &[0, 2, 0, 255]].concat()), "cannot be decoded"),
        (b"BM".to_vec(), "it is cut off"),
        (b"GIF89a".to_vec(), "it is cut off"),
        (huge(0), "it has no pixels"),
        (gif((3, 3), &[]), "it is cut off"),
        // A comment and no frame.
        ([&header(3)[..], b"!\xFE\x01x\0;"].concat(), "the document has no pages"),
        (b"GIF89a\x03\0\x03\0\0\0\0;".to_vec(), ""),
        (gif((3, 3), &[frame((0, 0), (3, 3), &[1; 9])])[..30].to_vec(), ""),
    ] {
        let error = refused(&file);
        assert!(error.contains(reason), "{error} does not say {reason:?}");
    }
    assert_eq!(Bitmap::read(b"II*\0").err(), Some(DocumentDefect::UnknownPicture));
    assert!(begun.elapsed().as_secs() < 2);
}

#[test]
fn codes_that_stand_for_many_pixels_fill_no_more_than_the_frame() {
    // Half a kB of codes for 4 million pixels of one colour.
    let bomb = gif((2048, 2048), &[frame((0, 0), (2048, 2048), &vec![1; 2048 * 2048])]);
    assert!(bomb.len() < 20_000, "{}", bomb.len());
    assert_eq!(Bitmap::read(&bomb).unwrap().pixels.len(), 3 * 2048 * 2048);
    // The same codes in a frame of 1x1, which is full after the first of them.
    let mut small = bomb;
    let at = small.windows(9).position(|bytes| bytes == b",\0\0\0\0\0\x08\0\x08").unwrap();
    small[at + 5..at + 9].copy_from_slice(&[1, 0, 1, 0]);
    small[6..10].copy_from_slice(&[1, 0, 1, 0]);
    assert_eq!(pixels(&small), [BLUE]);
}

#[test]
fn every_beginning_of_a_file_is_refused() {
    let interlaced = Frame { interlaced: true, ..frame((0, 0), (9, 9), &[0, 1, 1].repeat(27)) };
    let files = [
        // The last row of a BMP is filled up; the end of a GIF and of its codes are after its pixels.
        (bmp((3, 2), (24, 0), 0, &[7; 24]), 0),
        (gif((9, 9), &[frame((0, 0), (9, 9), &[0, 1, 1].repeat(27))]), 4),
        (gif((9, 9), &[interlaced]), 4),
    ];
    for (file, end) in files {
        assert!(Bitmap::read(&file).is_ok());
        for length in 0..file.len() - end {
            assert!(Bitmap::read(&file[..length]).is_err(), "{length} of {} bytes", file.len());
        }
    }
}

#[test]
fn a_large_picture_is_drawn_smaller_and_its_resolution_is_kept() {
    let limits = DocumentLimits { pixels_max: 100, ..DocumentLimits::new(1, 1000) };
    let file = bmp((40, 20), (1, 0), 2, &[&PALETTE[..], &[0; 8 * 20]].concat());
    let bitmap = Bitmap::read(&file).unwrap();
    let Ok(DrawnPage::Picture { width, height, pixels }) = bitmap.drawn(limits) else { panic!("no picture") };
    assert_eq!((width, height, pixels), (13, 6, RED.repeat(13 * 6)));
    // 300 dots per inch.
    let (width, height) = bitmap.stored().unwrap().points();
    assert!((width - 40.0 * 72.0 / 300.0).abs() < 0.01 && (height - 20.0 * 72.0 / 300.0).abs() < 0.01);
}

proptest! {
    #[test]
    fn pixels_come_out_as_they_went_in(
        (width, height, indexes) in (1_u16..40, 1_u16..40).prop_flat_map(|(width, height)| {
            let count = usize::from(width) * usize::from(height);
            (Just(width), Just(height), proptest::collection::vec(0_u8..2, count))
        }),
        interlaced: bool,
    ) {
        let expected: Vec<_> = indexes.iter().map(|index| [RED, BLUE][usize::from(*index)]).collect();
        // The encoder takes the rows of an interlaced frame in the order of the file.
        let plain = frame((0, 0), (width, height), &indexes);
        let frame = if interlaced { interlace(plain) } else { plain };
        prop_assert_eq!(&pixels(&gif((width, height), &[frame])), &expected);

        let mut file = Vec::new();
        let encoder = BmpEncoder::new(&mut file);
        let samples = expected.as_flattened();
        encoder.write_image(samples, width.into(), height.into(), ExtendedColorType::Rgb8).unwrap();
        prop_assert_eq!(&pixels(&file), &expected);
    }

    #[test]
    fn any_bytes_are_a_picture_or_refused(start in prop::sample::select(vec![&b"BM"[..], b"GIF89a"]), bytes: Vec<u8>) {
        fuzz_bitmap(&[start, &bytes].concat());
    }
}

/// The rows in the order of the four passes.
fn interlace(frame: Frame<'static>) -> Frame<'static> {
    let rows: Vec<_> = frame.buffer.chunks(frame.width.into()).collect();
    let pass = |first, step| rows.iter().skip(first).step_by(step).flat_map(|row| row.to_vec());
    let buffer: Vec<u8> = pass(0, 8).chain(pass(4, 8)).chain(pass(2, 4)).chain(pass(1, 2)).collect();
    Frame { interlaced: true, buffer: buffer.into(), ..frame }
}
