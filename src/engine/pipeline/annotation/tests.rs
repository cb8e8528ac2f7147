use ledge_base::memory_budget::MemoryAccount;
use proptest::prelude::*;

use super::super::image::Rgb8Image;
use super::*;

fn detection(label: &str, [x, y, width, height]: [f64; 4]) -> Detection {
    let area = DetectionBox { x, y, width, height };
    Detection { label: label.to_owned(), score: 0.87, area, margin: 0.0 }
}

/// A PNG of one colour.
fn plain(width: u32, height: u32, color: RgbColor) -> Vec<u8> {
    let pixels = color.repeat(width as usize * height as usize);
    encode(&pixels, (width, height), PictureFormat::Png).unwrap()
}

fn annotated(photograph: &[u8], annotation: &Annotation<'_>) -> Rgb8Image {
    let limits = DecodeLimits::default();
    let encoded = annotate(photograph, annotation, limits, &mut MemoryAccount::unlimited().hold()).unwrap();
    image::decode(&encoded, limits).unwrap()
}

fn only_boxes(detections: &[Detection]) -> Annotation<'_> {
    Annotation { detections, texts: &[], zones: &[], blurred: &[], format: PictureFormat::Png }
}

fn at(picture: &Rgb8Image, x: u32, y: u32) -> RgbColor {
    let pixels = picture.pixels().as_chunks::<3>().0;
    pixels[(y * picture.width() + x) as usize]
}

#[test]
fn a_box_is_seen_on_a_background_of_its_own_color() {
    for color in COLORS {
        let label = (0..1000).map(|number| number.to_string()).find(|label| color_of(label) == color).unwrap();
        let picture = annotated(&plain(200, 200, color), &only_boxes(&[detection(&label, [20.0, 50.0, 100.0, 100.0])]));
        assert_eq!(at(&picture, 20, 100), BORDER);
        assert_eq!(at(&picture, 22, 100), color);
        assert_eq!(at(&picture, 100, 100), color, "the inside stays");
        let letters = (20..120).any(|x| (34..50).any(|y| at(&picture, x, y) != color));
        assert!(letters, "{label}");
    }
}

#[test]
fn a_text_is_outlined_as_it_stands_and_one_of_a_field_has_its_name() {
    let askew = [[20.0, 60.0], [170.0, 90.0], [165.0, 110.0], [15.0, 80.0]];
    let outline = |field: Option<&str>| TextOutline { corners: askew, field: field.map(str::to_owned) };
    let drawn = |texts: &[TextOutline]| annotated(&plain(200, 200, [255; 3]), &Annotation { texts, ..only_boxes(&[]) });
    let line = drawn(&[outline(None)]);
    for [x, y] in [[20, 60], [95, 75], [170, 90], [90, 95], [15, 80]] {
        assert_eq!(at(&line, x, y), LINE_COLOR, "{x} {y}");
    }
    assert_eq!([at(&line, 92, 85), at(&line, 170, 60), at(&line, 20, 110)], [[255; 3]; 3], "inside and beside");

    let field = drawn(&[outline(None), outline(Some("total"))]);
    let color = color_of("total");
    assert_eq!(at(&field, 95, 75), color);
    // Five letters of 9x16 pixels, less their ink.
    let filled = (44..60).flat_map(|y| (15..65).map(move |x| (x, y))).filter(|(x, y)| at(&field, *x, *y) == color);
    assert!(filled.count() > 400);
}

#[test]
fn a_zone_has_a_thin_outline_and_its_name() {
    // An L, which ends at the edge of the picture.
    let corners = vec![[0.0, 0.0], [100.0, 0.0], [100.0, 100.0], [200.0, 100.0], [200.0, 200.0], [0.0, 200.0]];
    let zones = [ZoneOutline { name: "gate".to_owned(), corners }];
    let picture = annotated(&plain(200, 200, [255; 3]), &Annotation { zones: &zones, ..only_boxes(&[]) });
    let color = color_of("gate");
    for [x, y] in [[100, 50], [150, 100], [199, 150], [50, 199], [0, 100]] {
        assert_eq!(at(&picture, x, y), color, "{x} {y}");
    }
    assert_eq!([at(&picture, 50, 100), at(&picture, 150, 50)], [[255; 3]; 2], "inside and beside");
    let filled = (0..16).flat_map(|y| (0..40).map(move |x| (x, y))).filter(|(x, y)| at(&picture, *x, *y) == color);
    assert!(filled.count() > 300, "its name");
}

#[test]
fn a_label_is_inside_the_picture_wherever_its_box_is() {
    for place in [[0.0, 0.0, 20.0, 20.0], [380.0, 0.0, 20.0, 20.0], [380.0, 280.0, 20.0, 20.0]] {
        let picture = annotated(&plain(400, 300, [9; 3]), &only_boxes(&[detection("refrigerator", place)]));
        let color = color_of("refrigerator");
        let filled = picture.pixels().as_chunks::<3>().0.iter().filter(|pixel| **pixel == color).count();
        // 16 characters of 9x16 pixels, less their ink.
        assert!(filled > 1200, "{place:?}: {filled}");
    }
}

#[test]
fn a_blurred_place_has_few_colors_and_the_rest_is_as_it_was() {
    let noise: Vec<u8> = (0..100 * 100 * 3_u32).map(|at| u8::try_from(at * 7919 % 251).unwrap()).collect();
    let photograph = encode(&noise, (100, 100), PictureFormat::Png).unwrap();
    let face = DetectionBox { x: 10.5, y: 20.0, width: 50.0, height: 30.0 };
    let picture = annotated(&photograph, &Annotation { blurred: &[face], ..only_boxes(&[]) });

    let inside = |x: u32, y: u32| (10..61).contains(&x) && (20..50).contains(&y);
    let mut colors = std::collections::BTreeSet::new();
    for (index, before) in noise.as_chunks::<3>().0.iter().enumerate() {
        let (x, y) = (u32::try_from(index).unwrap() % 100, u32::try_from(index).unwrap() / 100);
        if inside(x, y) {
            colors.insert(at(&picture, x, y));
        } else {
            assert_eq!(at(&picture, x, y), *before, "{x} {y}");
        }
    }
    assert!(colors.len() <= BLURRED_CELLS * BLURRED_CELLS, "{}", colors.len());
}

const BLURRED_CELLS: usize = 6;

#[test]
fn of_a_person_the_head_is_blurred_and_of_a_face_more_than_its_box() {
    let found = [
        detection("person", [10.0, 20.0, 30.0, 80.0]),
        detection("car", [1.0, 2.0, 3.0, 4.0]),
        detection("face", [4.0, 100.0, 50.0, 60.0]),
    ];
    let places = |labels: &[&str]| blurred_places(&labels.iter().map(ToString::to_string).collect::<Vec<_>>(), &found);
    let head = DetectionBox { x: 10.0, y: 20.0, width: 30.0, height: 32.0 };
    // Some of it is outside of the picture, where nothing is drawn.
    let face = DetectionBox { x: -6.0, y: 88.0, width: 70.0, height: 84.0 };
    assert_eq!(places(&["person", "face"]), [head, face]);
    assert_eq!(places(&["car", "person"]), [head, found[1].area]);
    assert_eq!(places(&[]), []);
}

#[test]
fn both_formats_keep_the_size_and_leave_out_the_metadata() {
    let photograph = plain(64, 48, [100, 150, 200]);
    for (format, kind) in [(PictureFormat::Jpeg, ImageFormat::Jpeg), (PictureFormat::Png, ImageFormat::Png)] {
        let annotation = Annotation { format, ..only_boxes(&[]) };
        let limits = DecodeLimits::default();
        let encoded = annotate(&photograph, &annotation, limits, &mut MemoryAccount::unlimited().hold()).unwrap();
        assert_eq!(ImageFormat::sniff(&encoded), Some(kind));
        let picture = image::decode(&encoded, limits).unwrap();
        assert_eq!((picture.width(), picture.height()), (64, 48));
        for (channel, sent) in at(&picture, 30, 30).into_iter().zip([100, 150, 200]) {
            assert!(channel.abs_diff(sent) <= 2, "{kind}: {channel}");
        }
    }
}

#[test]
fn what_is_no_photograph_is_an_error() {
    let error =
        annotate(b"no picture", &only_boxes(&[]), DecodeLimits::default(), &mut MemoryAccount::unlimited().hold());
    assert!(matches!(error, Err(AnnotationError::Photograph(ImageError::Unrecognized { .. }))), "{error:?}");
}

proptest! {
    #[test]
    fn any_box_with_any_label_is_drawn(
        size in (1_u32..120, 1_u32..120), places in prop::collection::vec(any::<[f64; 4]>(), 0..4), label in ".{0,20}",
    ) {
        let detections: Vec<_> = places.iter().map(|place| detection(&label, *place)).collect();
        let blurred: Vec<_> = detections.iter().map(|detection| detection.area).collect();
        let annotation = Annotation { blurred: &blurred, ..only_boxes(&detections) };
        let picture = annotated(&plain(size.0, size.1, [1, 2, 3]), &annotation);
        prop_assert_eq!((picture.width(), picture.height()), size);
    }
}
