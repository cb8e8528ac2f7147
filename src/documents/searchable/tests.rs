//! Searchable PDFs are read again by the renderer: words are where they were put, and pages look as before.

use hayro::kurbo::Point;
use image::codecs::bmp::BmpEncoder;
use image::codecs::jpeg::JpegEncoder;
use image::{ExtendedColorType, ImageEncoder as _};
use proptest::prelude::*;

use super::*;
use crate::order::{LayerWord, TextLayerPolicy};
use crate::pdf::{DrawnPage, glyphs};

const LIMITS: fn() -> DocumentLimits = || DocumentLimits::new(10, 10_000);

fn data(file: &str) -> Vec<u8> {
    std::fs::read(format!("{}/../../tests/data/{file}", env!("CARGO_MANIFEST_DIR"))).unwrap()
}

/// A file with a page for each of these entries of page dictionaries. All inherit their resources.
fn file(form: XrefForm, pages: &[&str]) -> Vec<u8> {
    let mut writer = PdfWriter::new();
    let [root, list, font] = [(); 3].map(|()| writer.reserve());
    let ids: Vec<_> = pages.iter().map(|_| [writer.reserve(), writer.reserve()]).collect();
    let kids = ids.iter().map(|[page, _]| page.to_string()).collect::<Vec<_>>().join(" ");
    writer.object(root, format!("<</Type/Catalog/Pages {list}>>").as_bytes());
    let resources = format!("/Resources<</Font<</F {font}>>>>");
    let body = format!("<</Type/Pages/Count {}/Kids[{kids}]/MediaBox[0 0 400 300]{resources}>>", pages.len());
    writer.object(list, body.as_bytes());
    writer.object(font, b"<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>");
    for ([page, contents], entries) in ids.into_iter().zip(pages) {
        // The graphics state stays changed at the end of the page.
        writer.stream(contents, b"", b"q 2 0 0 2 9 9 cm BT /F 20 Tf 20 60 Td (Visible) Tj ET 50 50 40 40 re f");
        let body = format!("<</Type/Page/Parent {list}/Contents {contents}{entries}>>");
        writer.object(page, body.as_bytes());
    }
    writer.finish(form, format!("/Root {root}").as_bytes())
}

fn pictures(file: &[u8]) -> Vec<(u32, u32, Vec<u8>)> {
    let mut pictures = Vec::new();
    let file = PdfFile::open(file.to_vec(), LIMITS()).unwrap();
    let drawn = file.draw(TextLayerPolicy::Never, |page| {
        if let DrawnPage::Picture { width, height, pixels } = page {
            pictures.push((width, height, pixels));
        }
        Ok::<_, DocumentDefect>(())
    });
    drawn.unwrap();
    pictures
}

/// A word whose first letter begins at `start`, in the direction of `angle` in degrees from the right downward.
fn word(text: &str, start: (f64, f64), angle: f64, (width, height): (f64, f64)) -> LayerWord {
    let turned = Affine::translate(start) * Affine::rotate(angle.to_radians());
    let corners = [(0.0, 0.0), (width, 0.0), (width, height), (0.0, height)];
    #[expect(clippy::cast_possible_truncation, reason = "a place on a page")]
    let corners = corners.map(|corner| turned * Point::from(corner)).map(|corner| [corner.x as f32, corner.y as f32]);
    LayerWord { text: text.to_owned(), corners }
}

fn layer(size: (u32, u32), lines: Vec<Vec<LayerWord>>) -> LayerPage {
    LayerPage { width: size.0, height: size.1, lines }
}

/// Two lines of a page.
fn lines() -> Vec<Vec<LayerWord>> {
    let at = |text, x, y| word(text, (x, y), 0.0, (120.0, 30.0));
    vec![vec![at("Größe", 40.0, 40.0), at("発票", 200.0, 40.0)], vec![at("𝔸😀", 40.0, 90.0)]]
}

/// A file has these words on a page, and the characters of each where the word is.
#[track_caller]
fn check_words(file: &[u8], page: usize, words: &[&LayerWord]) {
    let glyphs = glyphs(file, page);
    let mut glyphs = glyphs.iter().filter(|glyph| !glyph.is_visible && glyph.text.as_deref() != Some(" "));
    for word in words {
        let [top, _, end, start] = word.corners.map(|[x, y]| Point::new(x.into(), y.into()));
        let count = word.text.chars().count();
        for (index, character) in word.text.chars().enumerate() {
            let glyph = glyphs.next().unwrap();
            assert_eq!(glyph.text, Some(character.to_string()), "{word:?}");
            #[expect(clippy::cast_precision_loss, reason = "characters of a word")]
            let place = start + (end - start) * (index as f64 / count as f64);
            assert!(glyph.start.distance(place) < 2.0, "{index} of {word:?} is at {:?}, not {place:?}", glyph.start);
            assert!((glyph.up - (top - start)).hypot() < 2.0, "{word:?} has the height {:?}", glyph.up);
        }
    }
    assert!(glyphs.next().is_none());
}

/// Adds words to the first page, and checks that it looks the same and that they are where they were put.
#[track_caller]
fn check_made(original: &[u8], lines: &[Vec<LayerWord>]) -> Vec<u8> {
    let before = pictures(original);
    let (width, height, _) = before[0];
    let made =
        make(original.to_vec(), SearchableSource::Pdf, &[layer((width, height), lines.to_vec())], LIMITS()).unwrap();
    assert!(before == pictures(&made), "the pages look the same");
    check_words(&made, 0, &lines.iter().flatten().collect::<Vec<_>>());
    made
}

#[test]
fn an_update_leaves_the_bytes_of_the_file_and_has_the_form_of_its_references() {
    for original in [data("documents/invoice.pdf"), file(XrefForm::Table, &["", ""]), file(XrefForm::Stream, &["", ""])]
    {
        let made = check_made(&original, &lines());
        assert!(made.starts_with(&original));
        let form = |file: &[u8]| LastXref::of(file).unwrap().form;
        assert_eq!(form(&made), form(&original));
    }
}

#[test]
fn a_document_without_words_stays_as_it_is() {
    let original = file(XrefForm::Table, &["", ""]);
    for layers in [vec![], vec![layer((9, 9), vec![])], vec![layer((9, 9), vec![vec![]]); 2]] {
        assert_eq!(make(original.clone(), SearchableSource::Pdf, &layers, LIMITS()), Ok(original.clone()));
    }
}

#[test]
fn words_are_added_to_a_layer_under_another_name_of_the_font() {
    let once = check_made(&file(XrefForm::Table, &[""]), &lines()[..1]);
    let (width, height, _) = pictures(&once)[0];
    let twice = make(once.clone(), SearchableSource::Pdf, &[layer((width, height), lines()[1..].to_vec())], LIMITS());
    let all = lines().concat();
    check_words(&twice.unwrap(), 0, &[&all[2], &all[0], &all[1]]);
}

#[test]
fn each_page_gets_its_words_and_pages_with_the_same_resources_share_them() {
    let original = file(XrefForm::Stream, &["", "", "/Rotate 90"]);
    let layers: Vec<_> =
        pictures(&original).iter().map(|(width, height, _)| layer((*width, *height), lines())).collect();
    let made = make(original.clone(), SearchableSource::Pdf, &layers, LIMITS()).unwrap();
    (0..3).for_each(|page| check_words(&made, page, &lines().iter().flatten().collect::<Vec<_>>()));
    let text = String::from_utf8_lossy(&made);
    assert_eq!((text.matches("/LedgeText").count(), text.matches("/Helvetica").count()), (1, 1));
}

#[test]
fn an_encrypted_file_and_one_without_references_are_written_again() {
    let encrypted = data("documents/encrypted.pdf");
    let mut damaged = data("documents/invoice.pdf");
    damaged.truncate(damaged.windows(4).rposition(|bytes| bytes == b"xref").unwrap() - 5);
    for original in [encrypted, damaged] {
        let made = check_made(&original, &lines());
        assert!(LastXref::of(&made).unwrap().is_of(&Pdf::new(made.clone()).unwrap()));
    }
}

#[test]
fn a_file_that_is_no_document_is_refused() {
    let made = |file: &[u8], source| make(file.to_vec(), source, &[layer((9, 9), lines())], LIMITS());
    assert_eq!(made(b"%PDF-1.7", SearchableSource::Pdf), Err(DocumentDefect::Damaged));
    assert_eq!(made(b"II*\0", SearchableSource::Tiff), Err(DocumentDefect::Damaged));
    assert_eq!(made(b"PK\x03\x04", SearchableSource::Picture), Err(DocumentDefect::UnknownPicture));
    assert_eq!(made(b"\xFF\xD8\xFF\xD9", SearchableSource::Picture), Err(DocumentDefect::Damaged));
    assert!(matches!(
        made(b"\x89PNG\r\n\x1a\n", SearchableSource::Picture),
        Err(DocumentDefect::Undecodable { page: 1, .. })
    ));
    // A page within the list of pages has no number, so no update can replace it.
    let mut writer = PdfWriter::new();
    let [root, list] = [(); 2].map(|()| writer.reserve());
    writer.object(root, format!("<</Type/Catalog/Pages {list}>>").as_bytes());
    writer.object(list, b"<</Type/Pages/Count 1/Kids[<</Type/Page/MediaBox[0 0 9 9]>>]>>");
    let inline = writer.finish(XrefForm::Table, format!("/Root {root}").as_bytes());
    assert_eq!(made(&inline, SearchableSource::Pdf), Err(DocumentDefect::NoLayer));
}

#[test]
fn a_word_without_a_place_or_without_letters_is_left_out() {
    let corners = |x: f32| [[x, 0.0], [x, 0.0], [x, 0.0], [x, 0.0]];
    let word = |text: &str, x| LayerWord { text: text.to_owned(), corners: corners(x) };
    let words = vec![word("a", f32::NAN), word("b", f32::MAX), word(" \u{7}", 9.0), word("c", 9.0)];
    let original = file(XrefForm::Table, &[""]);
    let made = make(original, SearchableSource::Pdf, &[layer((1111, 833), vec![words])], LIMITS()).unwrap();
    let hidden = glyphs(&made, 0).into_iter().filter(|glyph| !glyph.is_visible);
    assert_eq!(hidden.filter_map(|glyph| glyph.text).collect::<String>(), "c ");
}

/// A picture of four colours, from the upper left corner clockwise.
const QUARTERS: [[u8; 3]; 4] = [[250, 0, 0], [0, 250, 0], [0, 0, 250], [250, 250, 0]];

/// The colours of its quarters on the first page of a PDF, which has this size.
#[track_caller]
fn quarters(file: &[u8], (width, height): (u32, u32)) -> [[u8; 3]; 4] {
    let (drawn_width, drawn_height, pixels) = pictures(file).remove(0);
    // The renderer rounds sides down.
    assert!(width - drawn_width <= 1 && height - drawn_height <= 1, "{drawn_width}x{drawn_height}");
    [(1, 1), (3, 1), (3, 3), (1, 3)].map(|(x, y)| {
        let at = 3 * (y * height / 4 * drawn_width + x * width / 4) as usize;
        [pixels[at], pixels[at + 1], pixels[at + 2]]
    })
}

#[test]
fn a_jpeg_stays_as_it_is_and_is_drawn_upright() {
    let (width, height) = (160_u32, 80_u32);
    let quarter =
        |x: u32, y: u32| QUARTERS[[[0, 1], [3, 2]][usize::from(y >= height / 2)][usize::from(x >= width / 2)]];
    let pixels: Vec<u8> = (0..height).flat_map(|y| (0..width).flat_map(move |x| quarter(x, y))).collect();
    // The corner of the picture that each orientation has at the upper left, and the next one clockwise.
    for (orientation, [first, second]) in
        [[0, 1], [1, 0], [2, 3], [3, 2], [0, 3], [3, 0], [2, 1], [1, 2]].into_iter().enumerate()
    {
        let number = u8::try_from(orientation + 1).unwrap();
        let mut jpeg = Vec::new();
        let mut encoder = JpegEncoder::new_with_quality(&mut jpeg, 95);
        let exif = [&b"II*\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0"[..], &[number, 0, 0, 0, 0, 0, 0, 0]].concat();
        encoder.set_exif_metadata(exif).unwrap();
        encoder.write_image(&pixels, width, height, ExtendedColorType::Rgb8).unwrap();

        let size = if number > 4 { (height, width) } else { (width, height) };
        let words = vec![vec![word("Summe", (10.0, 20.0), 0.0, (50.0, 20.0))]];
        let made = make(jpeg.clone(), SearchableSource::Picture, &[layer(size, words.clone())], LIMITS()).unwrap();
        assert!(made.windows(jpeg.len()).any(|bytes| bytes == jpeg), "{number}");
        check_words(&made, 0, &[&words[0][0]]);
        let found = quarters(&made, size);
        for (corner, expected) in [(0, first), (1, second)] {
            let near = found[corner].iter().zip(QUARTERS[expected]).all(|(a, b)| a.abs_diff(b) < 20);
            assert!(near, "orientation {number}: corner {corner} is {:?}", found[corner]);
        }
    }
}

#[test]
fn pixels_of_a_png_are_kept_and_transparent_ones_become_white() {
    use png::{BitDepth, ColorType};
    let encoded = |color, depth, palette: &[u8], alphas: &[u8], samples: &[u8]| {
        let mut file = Vec::new();
        let mut encoder = png::Encoder::new(&mut file, 8, 8);
        encoder.set_color(color);
        encoder.set_depth(depth);
        if !palette.is_empty() {
            encoder.set_palette(palette.to_vec());
            encoder.set_trns(alphas.to_vec());
        }
        let mut writer = encoder.write_header().unwrap();
        writer.write_image_data(samples).unwrap();
        writer.finish().unwrap();
        file
    };
    let rows = |row: &[u8]| row.repeat(8);
    for (file, expected) in [
        (encoded(ColorType::Grayscale, BitDepth::One, &[], &[], &rows(&[0x0F])), [[0; 3], [255; 3]]),
        (
            encoded(ColorType::Grayscale, BitDepth::Sixteen, &[], &[], &rows(&[[9; 8], [200; 8]].concat())),
            [[9; 3], [200; 3]],
        ),
        (
            encoded(
                ColorType::Rgb,
                BitDepth::Eight,
                &[],
                &[],
                &rows(&[[1, 2, 3].repeat(4), [7, 8, 9].repeat(4)].concat()),
            ),
            [[1, 2, 3], [7, 8, 9]],
        ),
        (
            encoded(ColorType::Indexed, BitDepth::One, &[9, 8, 7, 0, 0, 0], &[255, 0], &rows(&[0x0F])),
            [[9, 8, 7], [255; 3]],
        ),
        (
            encoded(
                ColorType::Rgba,
                BitDepth::Eight,
                &[],
                &[],
                &rows(&[[1, 2, 3, 255].repeat(4), [0; 16].to_vec()].concat()),
            ),
            [[1, 2, 3], [255; 3]],
        ),
        (
            encoded(
                ColorType::GrayscaleAlpha,
                BitDepth::Eight,
                &[],
                &[],
                &rows(&[[50, 255].repeat(4), [0, 204].repeat(4)].concat()),
            ),
            [[50; 3], [51; 3]],
        ),
    ] {
        let made = make(file, SearchableSource::Picture, &[], LIMITS()).unwrap();
        let [left, right, ..] = quarters(&made, (8, 8));
        assert_eq!([left, right], expected);
    }
}

#[test]
fn pixels_of_a_bmp_are_kept_in_colour_in_gray_and_in_black_and_white() {
    for (left, right, filter) in [
        ([1, 2, 3], [7, 8, 9], "/DeviceRGB/BitsPerComponent 8/Filter/FlateDecode"),
        ([9; 3], [200; 3], "/DeviceGray/BitsPerComponent 8/Filter/FlateDecode"),
        ([0; 3], [255; 3], "/DeviceGray/BitsPerComponent 1/Filter/CCITTFaxDecode"),
    ] {
        let row = [left.repeat(5), right.repeat(5)].concat();
        let mut file = Vec::new();
        BmpEncoder::new(&mut file).write_image(&row.repeat(10), 10, 10, ExtendedColorType::Rgb8).unwrap();
        let made = make(file, SearchableSource::Picture, &[], LIMITS()).unwrap();
        assert!(String::from_utf8_lossy(&made).contains(filter), "{filter}");
        let [first, second, ..] = quarters(&made, (10, 10));
        assert_eq!([first, second], [left, right]);
    }
}

#[test]
fn photographs_are_hardly_larger_as_a_pdf() {
    for photo in ["astronaut.jpg", "camera_orientation6.jpg", "coffee.png", "camera.webp"] {
        let file = data(&format!("photos/{photo}"));
        let made = make(file.clone(), SearchableSource::Picture, &[], LIMITS()).unwrap();
        let most = if photo.ends_with("webp") { 2.5 } else { 1.2 };
        #[expect(clippy::cast_precision_loss, reason = "kilobytes")]
        let times = made.len() as f64 / file.len() as f64;
        assert!(times < most, "{photo} is {times} times as large");
        assert_eq!(pictures(&made).len(), 1);
    }
}

/// A TIFF of a page without compression, with these entries besides.
fn tiff(bits: u16, samples: u16, (width, height): (u32, u32), pixels: &[u8]) -> Vec<u8> {
    let photometric = if samples == 3 { 2 } else { 1 };
    let length = u32::try_from(pixels.len()).unwrap();
    let entries: [(u16, u16, u32); 9] = [
        (256, 4, width),
        (257, 4, height),
        (258, 3, bits.into()),
        (259, 3, 1),
        (262, 3, photometric),
        (273, 4, 8),
        (277, 3, samples.into()),
        (278, 4, height),
        (279, 4, length),
    ];
    let mut file = [b"II*\0", &(8 + length).to_le_bytes()[..], pixels, &9_u16.to_le_bytes()].concat();
    for (tag, kind, value) in entries {
        file.extend([tag.to_le_bytes(), kind.to_le_bytes()].concat());
        // Three samples have three numbers of bits; one of them stands for all.
        file.extend([1_u32.to_le_bytes(), value.to_le_bytes()].concat());
    }
    file.extend([0; 4]);
    file
}

#[test]
fn pages_of_a_tiff_look_as_they_are_read() {
    let bits: Vec<u8> = (0..64).flat_map(|y: u8| (0..8).map(move |x: u8| x.wrapping_mul(y) ^ y)).collect();
    let grays: Vec<u8> = bits.iter().cycle().take(64 * 64).copied().collect();
    for (kind, file) in [("fax", tiff(1, 1, (64, 64), &bits)), ("gray", tiff(8, 1, (64, 64), &grays))] {
        let mut read = Vec::new();
        let document = TiffFile::open(file.clone(), LIMITS()).unwrap();
        let drawn = document.draw(|page| {
            if let DrawnPage::Picture { pixels, .. } = page {
                read = pixels;
            }
            Ok::<_, DocumentDefect>(())
        });
        drawn.unwrap();
        let words = vec![vec![word("Fax", (5.0, 30.0), -90.0, (20.0, 8.0))]];
        let made = make(file, SearchableSource::Tiff, &[layer((64, 64), words.clone())], LIMITS()).unwrap();
        check_words(&made, 0, &[&words[0][0]]);
        let (width, height, pixels) = pictures(&made).remove(0);
        assert_eq!((width, height), (64, 64));
        let differing = pixels.iter().zip(&read).filter(|(a, b)| a.abs_diff(**b) > 2).count();
        assert_eq!((pixels.len(), differing), (read.len(), 0), "{kind}");
    }
}

#[test]
fn right_to_left_words_are_written_as_they_are_seen() {
    for (text, seen) in [
        ("שלום", "םולש"),
        ("חשבונית12", "12תינובשח"),
        ("1,234.50", "1,234.50"),
        ("رقم:3/7", "3/7:مقر"),
        ("R-2048", "R-2048"),
    ] {
        let original = file(XrefForm::Table, &[""]);
        let words = vec![vec![word(text, (40.0, 40.0), 0.0, (120.0, 30.0))]];
        let made = make(original, SearchableSource::Pdf, &[layer((1111, 833), words)], LIMITS()).unwrap();
        let hidden = glyphs(&made, 0).into_iter().filter(|glyph| !glyph.is_visible);
        assert_eq!(hidden.filter_map(|glyph| glyph.text).collect::<String>(), format!("{seen} "));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn words_are_where_they_were_put_on_any_page(
        turn in 0_i32..4,
        crop in proptest::option::of((-20_i32..50, -20_i32..50, 200_i32..500, 150_i32..400)),
        is_stream: bool,
        places in proptest::collection::vec(
            ("[a-zA-ZäöüßÀ-ž0-9.,€-]{1,12}", (60.0..400.0, 60.0..300.0), 0.0..360.0, (20.0..150.0, 10.0..60.0)), 1..8),
    ) {
        let crop = crop.map(|(x0, y0, x1, y1)| format!("/CropBox[{x0} {y0} {x1} {y1}]")).unwrap_or_default();
        let form = if is_stream { XrefForm::Stream } else { XrefForm::Table };
        let original = file(form, &[&format!("/Rotate {}{crop}", 90 * turn)]);
        let words = places.into_iter().map(|(text, start, angle, size)| word(&text, start, angle, size));
        check_made(&original, &words.map(|word| vec![word]).collect::<Vec<_>>());
    }

    #[test]
    fn any_bytes_are_a_document_or_refused(bytes: Vec<u8>, at in 0_usize..1200, change: u8) {
        fuzz_searchable_pdf(&bytes);
        let mut changed = data("documents/invoice.pdf");
        changed[at] ^= change;
        fuzz_searchable_pdf(&changed);
    }
}
