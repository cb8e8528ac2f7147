use std::collections::HashMap;

use ledge_base::memory_budget::MemoryAccount;
use proptest::prelude::*;

use super::*;
use crate::backend::{ModelPort, ModelSignature};

fn section(text: &str) -> ObjectDetection {
    toml::from_str(text).unwrap()
}

fn port(name: &str, shape: &[i64]) -> ModelPort {
    ModelPort { name: name.to_owned(), datatype: DataType::Fp32, shape: shape.to_vec() }
}

/// The pipeline of a model with these outputs; the first one has the labels.
fn bound(text: &str, outputs: &[&str], labels: &[&str]) -> Result<Arc<dyn Pipeline>, String> {
    let section = section(text);
    assert_eq!(section.mistakes(), [], "{text}");
    let signature = ModelSignature {
        inputs: vec![port("image", &[1, 3, i64::from(section.size[0]), i64::from(section.size[1])])],
        outputs: outputs.iter().map(|name| port(name, &[-1, -1, -1])).collect(),
    };
    let labels: Arc<[String]> = labels.iter().map(ToString::to_string).collect();
    let labels = if labels.is_empty() { HashMap::new() } else { HashMap::from([(outputs[0].to_owned(), labels)]) };
    section.bind(ModelFacts {
        signature: &signature,
        labels: &labels,
        quantization: &HashMap::new(),
        files: &HashMap::new(),
        parts: &HashMap::new(),
        part_metadata: &HashMap::new(),
        fields: &[],
    })
}

/// A black picture as a PNG.
fn png(width: u32, height: u32) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut encoder = png::Encoder::new(&mut bytes, width, height);
    encoder.set_color(png::ColorType::Grayscale);
    encoder.write_header().unwrap().write_image_data(&vec![0; (width * height) as usize]).unwrap();
    bytes
}

/// The detections that a pipeline makes of outputs, for a picture of this width and height.
fn detect(
    pipeline: &Arc<dyn Pipeline>,
    picture: (u32, u32),
    outputs: Vec<Tensor>,
) -> Result<Vec<Detection>, PostprocessError> {
    let results = results(pipeline, picture, outputs)?;
    Ok(pipeline.detections(&results.iter().collect::<Vec<_>>()).unwrap())
}

/// The results that a pipeline makes of outputs, for a picture of this width and height.
fn results(
    pipeline: &Arc<dyn Pipeline>,
    picture: (u32, u32),
    outputs: Vec<Tensor>,
) -> Result<Vec<Tensor>, PostprocessError> {
    let mut hold = MemoryAccount::unlimited().hold();
    let prepared = pipeline
        .prepare(&CallContent::Photograph(png(picture.0, picture.1).into()), DecodeLimits::default(), &mut hold)
        .unwrap();
    prepared.postprocess.unwrap()(outputs)
}

fn tensor(shape: &[usize], numbers: impl Into<Vec<f32>>) -> Tensor {
    Tensor::from_vec(shape.to_vec(), numbers.into()).unwrap()
}

fn float(count: usize) -> f32 {
    f32::from(u16::try_from(count).unwrap())
}

fn areas(detections: &[Detection]) -> Vec<(&str, [f64; 4])> {
    detections
        .iter()
        .map(|Detection { label, area, .. }| (&**label, [area.x, area.y, area.width, area.height]))
        .collect()
}

/// A plain reference, as a reader of each form's description would write it: all boxes of all classes as (score, class,
/// edges in pixels of the input), without a shortcut.
mod reference {
    pub type Box = (f32, usize, [f32; 4]);

    pub fn around(x: f32, y: f32, width: f32, height: f32) -> [f32; 4] {
        [x - width / 2.0, y - height / 2.0, x + width / 2.0, y + height / 2.0]
    }

    /// Peaks of `heat[class][row][column]`.
    pub fn center(
        heat: &[f32],
        [classes, rows, columns]: [usize; 3],
        stride: f32,
        edges: impl Fn(usize, usize, f32) -> [f32; 4],
    ) -> Vec<Box> {
        let at = |class: usize, row: usize, column: usize| heat[(class * rows + row) * columns + column];
        let mut boxes = Vec::new();
        for class in 0..classes {
            for row in 0..rows {
                for column in 0..columns {
                    let around = |row: usize, column: usize| {
                        let (rows, columns) = (row.saturating_sub(1)..=row + 1, column.saturating_sub(1)..=column + 1);
                        rows.flat_map(move |row| columns.clone().map(move |column| (row, column)))
                    };
                    let highest = around(row, column)
                        .filter(|&(row, column)| row < rows && column < columns)
                        .map(|(row, column)| at(class, row, column))
                        .fold(f32::MIN, f32::max);
                    if at(class, row, column) >= highest {
                        boxes.push((at(class, row, column), class, edges(row, column, stride)));
                    }
                }
            }
        }
        boxes
    }

    fn area([left, top, right, bottom]: [f32; 4]) -> f32 {
        (right - left).max(0.0) * (bottom - top).max(0.0)
    }

    pub fn overlap(one: [f32; 4], other: [f32; 4]) -> f32 {
        let both = [one[0].max(other[0]), one[1].max(other[1]), one[2].min(other[2]), one[3].min(other[3])];
        let union = area(one) + area(other) - area(both);
        if union > 0.0 { area(both) / union } else { 0.0 }
    }

    /// The boxes of at least `least`, cut to an input of `width` and `height`, best first and without doubles.
    pub fn suppressed(boxes: Vec<Box>, least: f32, iou: f32, [width, height]: [f32; 2]) -> Vec<Box> {
        let inside = |[left, top, right, bottom]: [f32; 4]| {
            [left.clamp(0.0, width), top.clamp(0.0, height), right.clamp(0.0, width), bottom.clamp(0.0, height)]
        };
        let mut boxes: Vec<Box> =
            boxes.into_iter().map(|(score, class, edges)| (score, class, inside(edges))).collect();
        boxes.retain(|(score, _, edges)| *score >= least && area(*edges) > 0.0);
        boxes.sort_by(|one, other| other.0.total_cmp(&one.0));
        let mut kept: Vec<Box> = Vec::new();
        for candidate in boxes {
            if kept.iter().all(|other| other.1 != candidate.1 || overlap(other.2, candidate.2) <= iou) {
                kept.push(candidate);
            }
        }
        kept
    }
}

/// Asserts that detections in a picture of twice the input's size are the reference's boxes.
fn check_against(detections: &[Detection], expected: &[reference::Box]) -> Result<(), TestCaseError> {
    let round = |edge: f32| (f64::from(edge) * 2.0 * 8.0).round() / 8.0;
    let expected: Vec<_> = expected
        .iter()
        .map(|&(score, class, edges)| (score, class.to_string(), edges.map(round)))
        .filter(|(_, _, [left, top, right, bottom])| left < right && top < bottom)
        .collect();
    prop_assert_eq!(detections.len(), expected.len(), "{:?}\n{:?}", detections, expected);
    for (found, (score, label, [left, top, right, bottom])) in detections.iter().zip(expected) {
        prop_assert!(found.label == label && (found.score - score).abs() < 1e-5, "{found:?} {label} {score}");
        let edges = [found.area.x, found.area.y, found.area.x + found.area.width, found.area.y + found.area.height];
        for (edge, expected) in edges.into_iter().zip([left, top, right, bottom]) {
            // One step, where both round a number in the middle.
            prop_assert!((edge - expected).abs() <= 0.125, "{found:?} {edges:?} {:?}", [left, top, right, bottom]);
        }
    }
    Ok(())
}

const CENTER: &str = "size = [32, 32]\nmin_score = 0.3\n[center]\nheat_map = 'heat'\n";

proptest! {
    #[test]
    fn peaks_of_a_heat_map_are_those_of_the_reference(
        heat in proptest::collection::vec(0.0_f32..1.0, 2 * 8 * 8),
        extent in proptest::collection::vec(-4.0_f32..12.0, 4 * 8 * 8),
        is_nhwc: bool,
    ) {
        let layout = if is_nhwc { "layout = 'NHWC'" } else { "" };
        let pipeline = bound(&format!("{CENTER}extents = 'extent'\n{layout}"), &["heat", "extent"], &[]).unwrap();
        let (heat_output, extent_output) = if is_nhwc {
            (tensor(&[1, 8, 8, 2], channels_last(&heat, 2)), tensor(&[1, 8, 8, 4], channels_last(&extent, 4)))
        } else {
            (tensor(&[1, 2, 8, 8], heat.clone()), tensor(&[1, 4, 8, 8], extent.clone()))
        };
        let found = detect(&pipeline, (64, 64), vec![heat_output, extent_output]).unwrap();
        let boxes = reference::center(&heat, [2, 8, 8], 4.0, |row, column, stride| {
            let at = |channel: usize| extent[(channel * 8 + row) * 8 + column];
            let (x, y) = (float(column) * stride, float(row) * stride);
            [x - at(0), y - at(1), x + at(2), y + at(3)]
        });
        check_against(&found, &reference::suppressed(boxes, 0.3, 0.5, [32.0; 2]))?;
    }

    #[test]
    fn sizes_and_offsets_of_a_heat_map_are_those_of_the_reference(
        heat in proptest::collection::vec(0.0_f32..1.0, 8 * 8),
        size in proptest::collection::vec(0.0_f32..6.0, 2 * 8 * 8),
        offset in proptest::collection::vec(0.0_f32..1.0, 2 * 8 * 8),
        has_offsets: bool,
    ) {
        let offsets = if has_offsets { "offsets = 'offset'" } else { "" };
        let text = format!("{CENTER}sizes = 'size'\n{offsets}");
        let pipeline = bound(&text, &["heat", "size", "offset"], &[]).unwrap();
        let mut outputs = vec![tensor(&[1, 1, 8, 8], heat.clone()), tensor(&[1, 2, 8, 8], size.clone())];
        if has_offsets {
            outputs.push(tensor(&[1, 2, 8, 8], offset.clone()));
        }
        let found = detect(&pipeline, (64, 64), outputs).unwrap();
        let boxes = reference::center(&heat, [1, 8, 8], 4.0, |row, column, stride| {
            let at = |values: &[f32], channel: usize| values[(channel * 8 + row) * 8 + column];
            let (dx, dy) = if has_offsets { (at(&offset, 0), at(&offset, 1)) } else { (0.5, 0.5) };
            let (x, y) = ((float(column) + dx) * stride, (float(row) + dy) * stride);
            reference::around(x, y, at(&size, 0) * stride, at(&size, 1) * stride)
        });
        check_against(&found, &reference::suppressed(boxes, 0.3, 0.5, [32.0; 2]))?;
    }

    #[test]
    fn encodings_of_anchors_are_those_of_the_reference(
        logits in proptest::collection::vec(-3.0_f32..3.0, 20 * 3),
        raw in proptest::collection::vec(-8.0_f32..8.0, 20 * 4),
        is_softmax: bool,
    ) {
        let activation = if is_softmax { "activation = 'softmax'\nbackground = true" } else { "" };
        let text = format!(
            "size = [32, 32]\nmin_score = 0.5\n[anchors]\nscores = 's'\nboxes = 'b'\nstrides = [16, 32]\nmin_scale = 0.2\n\
             max_scale = 0.9\naspect_ratios = [1, 2, 0.5]\n{activation}"
        );
        let pipeline = bound(&text, &["s", "b"], &[]).unwrap();
        let outputs = vec![tensor(&[1, 20, 3], logits.clone()), tensor(&[1, 20, 4], raw.clone())];
        let found = detect(&pipeline, (64, 64), outputs).unwrap();

        let mut anchors = Vec::new();
        for (cells, scale, next) in [(2, 0.2_f32, 0.9_f32), (1, 0.9, 1.0)] {
            for (row, column) in (0..cells).flat_map(|row| (0..cells).map(move |column| (row, column))) {
                for (scale, ratio) in [(scale, 1.0_f32), (scale, 2.0), (scale, 0.5), ((scale * next).sqrt(), 1.0)] {
                    let middle = |cell: usize| (float(cell) + 0.5) / float(cells);
                    anchors.push([middle(column), middle(row), scale * ratio.sqrt(), scale / ratio.sqrt()]);
                }
            }
        }
        let mut boxes = Vec::new();
        for (index, [x, y, width, height]) in anchors.into_iter().enumerate() {
            let (raw, logits) = (&raw[index * 4..][..4], &logits[index * 3..][..3]);
            let edges = reference::around(
                (x + raw[1] / 10.0 * width) * 32.0,
                (y + raw[0] / 10.0 * height) * 32.0,
                (raw[3] / 5.0).exp() * width * 32.0,
                (raw[2] / 5.0).exp() * height * 32.0,
            );
            let sum: f32 = logits.iter().map(|logit| logit.exp()).sum();
            for (class, logit) in logits.iter().enumerate().skip(usize::from(is_softmax)) {
                let score = if is_softmax { logit.exp() / sum } else { 1.0 / (1.0 + (-logit).exp()) };
                boxes.push((score, class, edges));
            }
        }
        check_against(&found, &reference::suppressed(boxes, 0.5, 0.5, [32.0; 2]))?;
    }

    #[test]
    fn cells_of_a_grid_are_those_of_the_reference(
        numbers in proptest::collection::vec(0.0_f32..1.0, 20 * 7), is_columns: bool, is_encoded: bool,
    ) {
        let mut text = "size = [32, 32]\nmin_score = 0.3\n[grid]\nobjectness = true\n".to_owned();
        if is_encoded {
            text += "strides = [8, 16]\n";
        } else {
            text += "normalized = true\n";
        }
        let pipeline = bound(&text, &["out"], &[]).unwrap();
        let output = if is_columns {
            tensor(&[1, 7, 20], (0..7).flat_map(|n| (0..20).map(move |i| (i, n))).map(|(i, n)| numbers[i * 7 + n]).collect::<Vec<_>>())
        } else {
            tensor(&[1, 20, 7], numbers.clone())
        };
        let found = detect(&pipeline, (64, 64), vec![output]).unwrap();
        let mut boxes = Vec::new();
        for (index, row) in numbers.chunks(7).enumerate() {
            let edges = if is_encoded {
                let (cell, cells, stride) = if index < 16 { (index, 4, 8.0) } else { (index - 16, 2, 16.0) };
                let (x, y) = (float(cell % cells), float(cell / cells));
                reference::around((row[0] + x) * stride, (row[1] + y) * stride, row[2].exp() * stride, row[3].exp() * stride)
            } else {
                reference::around(row[0] * 32.0, row[1] * 32.0, row[2] * 32.0, row[3] * 32.0)
            };
            boxes.extend((0..2).map(|class| (row[4] * row[5 + class], class, edges)));
        }
        check_against(&found, &reference::suppressed(boxes, 0.3, 0.5, [32.0; 2]))?;
    }

    #[test]
    fn finished_boxes_are_those_of_the_reference(
        raw in proptest::collection::vec(0.0_f32..32.0, 10 * 4),
        scores in proptest::collection::vec(0.0_f32..1.0, 10),
        classes in proptest::collection::vec(0_u8..3, 10),
        order in 0..4_usize,
    ) {
        let name = ["xyxy", "yxyx", "xywh", "cxcywh"][order];
        let edges = |raw: &[f32]| match order {
            0 => [raw[0], raw[1], raw[2], raw[3]],
            1 => [raw[1], raw[0], raw[3], raw[2]],
            2 => [raw[0], raw[1], raw[0] + raw[2], raw[1] + raw[3]],
            _ => reference::around(raw[0], raw[1], raw[2], raw[3]),
        };
        let boxes: Vec<_> = raw
            .chunks(4)
            .zip(&scores)
            .zip(&classes)
            .map(|((raw, score), class)| (*score, usize::from(*class), edges(raw)))
            .collect();
        let expected = reference::suppressed(boxes, 0.4, 0.5, [32.0; 2]);

        let separate = format!("size = [32, 32]\n[boxes]\nboxes = 'b'\nscores = 's'\nclasses = 'c'\norder = '{name}'");
        let pipeline = bound(&separate, &["c", "s", "b"], &[]).unwrap();
        let class_numbers: Vec<f32> = classes.iter().map(|class| f32::from(*class)).collect();
        let outputs = vec![
            tensor(&[1, 10], class_numbers.clone()), tensor(&[1, 10], scores.clone()), tensor(&[1, 10, 4], raw.clone()),
        ];
        check_against(&detect(&pipeline, (64, 64), outputs).unwrap(), &expected)?;

        let joined = format!("size = [32, 32]\n[boxes]\ndetections = 'd'\norder = '{name}'");
        let pipeline = bound(&joined, &["d"], &[]).unwrap();
        let rows = raw.chunks(4).zip(&scores).zip(&class_numbers);
        let rows = rows.flat_map(|((raw, score), class)| [raw, &[*score, *class]].concat()).collect::<Vec<_>>();
        check_against(&detect(&pipeline, (64, 64), vec![tensor(&[1, 10, 6], rows)]).unwrap(), &expected)?;
    }

    /// Any bit pattern: NaN, infinities, subnormal numbers.
    #[test]
    fn boxes_are_inside_the_picture_whatever_numbers_a_model_gives(
        bits in proptest::collection::vec(odd_number(), 1200), width in 1_u32..90, height in 1_u32..90, fit in 0..3_usize,
        form in 0..6_usize,
    ) {
        let mut forms = vec![
            ("[center]\nheat_map = 'a'\nextents = 'b'", vec![vec![1, 2, 8, 8], vec![1, 4, 8, 8]]),
            (
                "[center]\nheat_map = 'a'\nsizes = 'b'\nactivation = 'sigmoid'",
                vec![vec![1, 2, 8, 8], vec![1, 2, 8, 8]],
            ),
            (
                "[anchors]\nscores = 'a'\nboxes = 'b'\nstrides = [8]\nmin_scale = 0.1\nmax_scale = 0.9",
                vec![vec![1, 32, 2], vec![1, 32, 4]],
            ),
            ("[grid]\nstrides = [8, 16]", vec![vec![1, 20, 7]]),
            (
                "[boxes]\nboxes = 'b'\nscores = 'a'\nactivation = 'softmax'",
                vec![vec![1, 20, 3], vec![1, 20, 4]],
            ),
            ("[boxes]\ndetections = 'a'", vec![vec![1, 20, 6]]),
        ];
        let (form, shapes): (&str, Vec<Vec<usize>>) = forms.swap_remove(form);
        let fit = ["stretch", "letterbox", "letterbox_corner"][fit];
        let text = format!("size = [32, 32]\nfit = '{fit}'\nmax_detections = 7\n{form}");
        let pipeline = bound(&text, &["a", "b"][..shapes.len()], &[]).unwrap();
        let mut rest = bits.as_slice();
        let tensors = shapes.iter().map(|shape| {
            let (numbers, others) = rest.split_at(shape.iter().product());
            rest = others;
            tensor(shape, numbers)
        });
        match detect(&pipeline, (width, height), tensors.collect()) {
            Ok(found) => {
                prop_assert!(found.len() <= 7);
                for Detection { score, area: DetectionBox { x, y, width: wide, height: high }, .. } in found {
                    prop_assert!(score >= 0.4 && score.is_finite());
                    prop_assert!(x >= 0.0 && y >= 0.0 && wide > 0.0 && high > 0.0);
                    prop_assert!(x + wide <= f64::from(width) && y + high <= f64::from(height));
                }
            }
            Err(error) => prop_assert!(matches!(error, PostprocessError::Values(_)), "{error}"),
        }
    }
}

fn odd_number() -> impl Strategy<Value = f32> {
    prop_oneof![2000 => -2.0_f32..40.0, 1 => any::<f32>(), 1 => Just(f32::NAN), 1 => Just(f32::INFINITY)]
}

fn channels_last(values: &[f32], channels: usize) -> Vec<f32> {
    let cells = values.len() / channels;
    (0..cells).flat_map(|cell| (0..channels).map(move |channel| values[channel * cells + cell])).collect()
}

#[test]
fn a_number_that_is_none_is_an_error_of_this_run() {
    let pipeline = bound(&format!("{CENTER}extents = 'extent'"), &["heat", "extent"], &[]).unwrap();
    let run = |heat: f32, extent: f32| {
        let heat = tensor(&[1, 1, 1, 2], vec![0.1, heat]);
        detect(&pipeline, (8, 8), vec![heat, tensor(&[1, 4, 1, 2], vec![extent; 8])])
    };
    assert_eq!(run(0.2, f32::NAN), Ok(Vec::new()));
    for (heat, extent) in [(f32::NAN, 1.0), (f32::INFINITY, 1.0), (0.9, f32::NAN), (0.9, f32::INFINITY)] {
        assert!(matches!(run(heat, extent), Err(PostprocessError::Values(_))), "{heat} {extent}");
    }
}

#[test]
fn a_letterbox_is_taken_off_again() {
    // A picture of 100x50 lies in rows 8 to 24 of 32x32.
    let text = "size = [32, 32]\nfit = 'letterbox'\n[boxes]\ndetections = 'd'";
    let detections = |text: &str, edges: [f32; 4]| {
        let pipeline = bound(text, &["d"], &["cat"]).unwrap();
        let row = [&edges[..], &[0.9, 0.0]].concat();
        let found = detect(&pipeline, (100, 50), vec![tensor(&[1, 1, 6], row)]).unwrap();
        areas(&found).into_iter().map(|(label, area)| (label.to_owned(), area)).collect::<Vec<_>>()
    };
    assert_eq!(detections(text, [0.0, 8.0, 32.0, 24.0]), [("cat".to_owned(), [0.0, 0.0, 100.0, 50.0])]);
    assert_eq!(detections(text, [16.0, 0.0, 24.0, 16.0]), [("cat".to_owned(), [50.0, 0.0, 25.0, 25.0])]);
    assert_eq!(detections(text, [0.0, 0.0, 32.0, 7.0]), [], "beside the picture");
    let corner = text.replace("letterbox", "letterbox_corner");
    assert_eq!(detections(&corner, [0.0, 0.0, 32.0, 16.0]), [("cat".to_owned(), [0.0, 0.0, 100.0, 50.0])]);
}

#[test]
fn thresholds_labels_and_the_number_of_boxes_are_those_asked_for() {
    let boxes = [(0.9, 0.0, 0.0), (0.5, 1.0, 8.0), (0.45, 2.0, 16.0), (0.3, 0.0, 24.0)];
    let rows: Vec<f32> = boxes.iter().flat_map(|&(score, class, x)| [x, 0.0, x + 8.0, 8.0, score, class]).collect();
    let labels = |settings: &str| {
        let text = format!("size = [32, 32]\n{settings}\n[boxes]\ndetections = 'd'");
        let pipeline = bound(&text, &["d"], &["person", "car", ""])?;
        let found = detect(&pipeline, (32, 32), vec![tensor(&[1, 4, 6], rows.clone())]).unwrap();
        Ok::<_, String>(found.into_iter().map(|found| found.label).collect::<Vec<_>>())
    };
    assert_eq!(labels("").unwrap(), ["person", "car", "2"]);
    assert_eq!(labels("min_score = 0.2").unwrap(), ["person", "car", "2", "person"]);
    assert_eq!(labels("min_scores = { person = 0.25, car = 0.6 }").unwrap(), ["person", "2", "person"]);
    assert_eq!(labels("labels = ['car']").unwrap(), ["car"]);
    assert_eq!(labels("max_detections = 1").unwrap(), ["person"]);
    let unknown = "pipeline.object_detection.labels names \"cart\", which is no label of the model";
    assert_eq!(labels("labels = ['car', 'cart']").unwrap_err(), unknown);
    assert!(labels("min_scores = { cart = 0.5 }").unwrap_err().contains("min_scores names \"cart\""));
}

#[test]
fn candidates_from_half_the_least_score_on_are_kept_and_not_reported() {
    // The fourth one overlaps the first one, and the sixth one is below half of every least score.
    let boxes = [(0.9, 0_u8, 0.0), (0.5, 1, 8.0), (0.3, 0, 16.0), (0.25, 0, 0.0), (0.2, 1, 24.0), (0.1, 0, 24.0)];
    let rows: Vec<f32> =
        boxes.iter().flat_map(|&(score, class, x)| [x, 0.0, x + 8.0, 8.0, score, f32::from(class)]).collect();
    let found = |settings: &str| {
        let text = format!("size = [32, 32]\n{settings}\n[boxes]\ndetections = 'd'");
        let pipeline = bound(&text, &["d"], &["person", "car"]).unwrap();
        let results = results(&pipeline, (32, 32), vec![tensor(&[1, 6, 6], rows.clone())]).unwrap();
        let results: Vec<_> = results.iter().collect();
        let scores = |found: Vec<Detection>| found.into_iter().map(|found| found.score).collect::<Vec<_>>();
        (scores(pipeline.detections(&results).unwrap()), scores(pipeline.unreported(&results)))
    };
    assert_eq!(found(""), (vec![0.9, 0.5], vec![0.3, 0.2]));
    assert_eq!(found("min_scores = { person = 0.7 }"), (vec![0.9, 0.5], vec![0.2]));
    assert_eq!(found("min_scores = { person = 0.3, car = 0.6 }"), (vec![0.9, 0.3], vec![0.5]));
    assert_eq!(found("max_detections = 1"), (vec![0.9], vec![0.5, 0.3, 0.2]));
    assert_eq!(found("labels = ['car']"), (vec![0.5], vec![0.9, 0.3, 0.2]));
}

#[test]
fn outputs_that_are_not_of_the_form_refuse_the_model() {
    let refused = |text: &str, names: &[&str], labels: &[&str], outputs: Vec<Tensor>| {
        let pipeline = bound(&format!("size = [32, 32]\n{text}"), names, labels).unwrap();
        match detect(&pipeline, (32, 32), outputs) {
            Err(PostprocessError::Outputs(reason)) => reason,
            other => panic!("{text}: {other:?}"),
        }
    };
    let zeros = |shape: &[usize]| tensor(shape, vec![0.0; shape.iter().product()]);
    let center = "[center]\nheat_map = 'a'\nextents = 'b'";
    let grid = "[grid]\nstrides = [8]";
    let anchors = "[anchors]\nscores = 'a'\nboxes = 'b'\nstrides = [16]\nmin_scale = 0.1\nmax_scale = 0.9";
    for (text, shapes, expected) in [
        (center, vec![vec![1, 80], vec![1, 4]], "expected the shape [1, channels, rows, columns]"),
        (center, vec![vec![1, 2, 8, 8], vec![1, 4, 4, 8]], "expected 4 channels of 8x8 cells"),
        (center, vec![vec![1, 0, 8, 8], vec![1, 4, 8, 8]], "expected at least one cell"),
        (grid, vec![vec![1, 17, 7]], "the strides [8] do not give 17 cells"),
        (grid, vec![vec![1, 16, 4]], "at least one score"),
        (anchors, vec![vec![1, 8, 2], vec![1, 9, 4]], "expected 8 rows of at least 4, one for each anchor"),
        (anchors, vec![vec![1, 9, 2], vec![1, 8, 4]], "expected the scores of 8 anchors"),
        ("[boxes]\ndetections = 'a'", vec![vec![1, 3, 7]], "expected rows of 6"),
        ("[boxes]\nboxes = 'b'\nscores = 'a'", vec![vec![1, 3, 2], vec![1, 3, 5]], "expected rows of 4"),
        ("[boxes]\nboxes = 'b'\nscores = 'a'", vec![vec![1, 7], vec![1, 3, 4]], "expected the scores of 3 boxes"),
    ] {
        let outputs = shapes.iter().map(|shape| zeros(shape)).collect();
        let names = &["a", "b"][..shapes.len()];
        let reason = refused(text, names, &[], outputs);
        assert!(reason.contains(expected), "{text}: {reason}");
    }
    let labels = refused(grid, &["a"], &["cat", "dog"], vec![zeros(&[1, 16, 7])]);
    assert!(labels.contains("output \"a\" has 3 classes and its label file has 2 lines"), "{labels}");
}

#[test]
fn every_mistake_of_the_section_is_told_at_once() {
    let keys = |text: &str| section(text).mistakes().into_iter().map(|mistake| mistake.key).collect::<Vec<_>>();
    assert_eq!(
        keys("size = [0, 5000]\nstd = [0, 1, 1]\nmin_score = 1.5\niou_threshold = -1\nmax_detections = 0"),
        ["size", "size", "std", "min_score", "iou_threshold", "max_detections", ""]
    );
    assert_eq!(
        keys("size = [8, 8]\nmin_scores = { a = nan }\n[grid]\n[boxes]\ndetections = 'd'"),
        ["min_scores", "boxes"]
    );
    assert_eq!(keys("size = [8, 8]\n[center]\nheat_map = 'h'"), ["center.extents"]);
    assert_eq!(keys("size = [8, 8]\n[center]\nheat_map = 'h'\nextents = 'e'\nsizes = 's'"), ["center.sizes"]);
    assert_eq!(keys("size = [8, 8]\n[boxes]"), ["boxes.boxes", "boxes.scores"]);
    assert_eq!(
        keys("size = [8, 8]\n[anchors]\nscores = 's'\nboxes = 'b'\nstrides = []\nmin_scale = 0\nmax_scale = 9"),
        ["anchors.strides", "anchors.min_scale", "anchors.max_scale"]
    );
    let anchors = "[anchors]\nscores = 's'\nboxes = 'b'\nmin_scale = 0.1\nmax_scale = 0.9\nstrides";
    assert_eq!(keys(&format!("size = [4096, 4096]\n{anchors} = [1]")), ["anchors.strides"]);
    assert_eq!(keys(&format!("size = [8, 8]\n{anchors} = [0]")), ["anchors.strides"]);
    assert_eq!(keys("size = [8, 8]\n[grid]\nstrides = [8]\nnormalized = true"), ["grid.normalized"]);
    assert!(toml::from_str::<ObjectDetection>("size = [8, 8]\n[grid]\nstride = 8").is_err());
}

#[test]
fn a_section_that_does_not_fit_the_model_says_so() {
    let text = "size = [32, 32]\n[center]\nheat_map = 'heat'\nextents = 'wh'";
    let reason = bound(text, &["heat", "extent"], &[]).unwrap_err();
    assert_eq!(reason, "pipeline.object_detection.center.extents names \"wh\", which the model lacks");
    let reason = bound("size = [32, 32]\n[grid]", &["a", "b"], &[]).unwrap_err();
    assert_eq!(reason, "the model has 2 outputs: pipeline.object_detection.grid.output must name one");
}

#[test]
fn the_anchors_are_those_of_mediapipe() {
    // Of BlazeFace's 896, the first two layers' and the last, as `SsdAnchorsCalculator` has them.
    let text = "size = [128, 128]\n[anchors]\nscores = 's'\nboxes = 'b'\nstrides = [8, 16, 16, 16]\nmin_scale = 0.1484375\n\
                max_scale = 0.75\nfixed_anchor_size = true";
    let table = section(text).anchors.unwrap().table([128.0; 2]);
    assert_eq!(table.len(), 896);
    assert_eq!((table[0].centre, table[1].centre, table[2].centre), ([0.03125; 2], [0.03125; 2], [0.09375, 0.03125]));
    assert_eq!((table[512].centre, table[895].centre), ([0.0625; 2], [0.9375; 2]));
    assert!(table.iter().all(|anchor| anchor.size.map(f32::to_bits) == [1.0_f32.to_bits(); 2]));
    // SSD-MobileNetV2 of 300 pixels.
    let text = "size = [300, 300]\n[anchors]\nscores = 's'\nboxes = 'b'\nstrides = [16, 32, 64, 128, 256, 512]\n\
                min_scale = 0.2\nmax_scale = 0.95\naspect_ratios = [1, 2, 0.5, 3, 0.3333]\nreduce_boxes_in_lowest_layer = true";
    let table = section(text).anchors.unwrap().table([300.0; 2]);
    assert_eq!(table.len(), 1917);
    assert!(table[0].size.iter().all(|side| (side - 0.1).abs() < 1e-6));
}

#[test]
fn a_golden_photograph_is_right_when_its_objects_are_found_where_they_are() {
    let pipeline = bound("size = [32, 32]\n[boxes]\ndetections = 'd'", &["d"], &["cat", "dog"]).unwrap();
    let rows = vec![0.0, 0.0, 8.0, 8.0, 0.9, 0.0, 16.0, 16.0, 32.0, 32.0, 0.6, 1.0];
    let mut hold = MemoryAccount::unlimited().hold();
    let prepared =
        pipeline.prepare(&CallContent::Photograph(png(32, 32).into()), DecodeLimits::default(), &mut hold).unwrap();
    let results = prepared.postprocess.unwrap()(vec![tensor(&[1, 2, 6], rows)]).unwrap();
    let judge = |text: &str| {
        #[derive(Deserialize)]
        struct GoldenDetections {
            detections: Vec<ExpectedDetection>,
        }
        let GoldenDetections { detections } = toml::from_str(&format!("detections = {text}")).unwrap();
        assert!(detections.iter().all(|expected| expected.mistake().is_none()));
        let expected = GoldenExpectation { label: None, min_score: None, detections: Some(&detections), words: None };
        pipeline.judge(&results.iter().collect::<Vec<_>>(), expected)
    };
    assert_eq!(
        judge("[{ label = 'cat', box = [0, 0, 8, 9], min_score = 0.9 }, { label = 'dog', box = [16, 16, 16, 16] }]"),
        Ok(())
    );
    for (expected, reason) in [
        ("[{ label = 'cow', box = [0, 0, 8, 8] }]", "expected \"cow\" at"),
        ("[{ label = 'dog', box = [0, 0, 8, 8] }]", "overlaps it by 0.00, expected at least 0.7"),
        ("[{ label = 'cat', box = [0, 0, 8, 8], min_score = 0.95 }]", "scores 0.900, expected at least 0.95"),
        (
            "[{ label = 'cat', box = [0, 0, 8, 8] }, { label = 'cat', box = [0, 0, 8, 8] }]",
            "besides what matched only [\"dog\"]",
        ),
        ("[]", "expected no detection, got \"cat\" (0.900)"),
    ] {
        let told = judge(expected).unwrap_err();
        assert!(told.contains(reason), "{told}");
    }
}

#[test]
fn one_object_is_one_row_of_text() {
    let detections =
        serde_json::json!([{"label": "dog", "score": 0.5, "box": {"x": 1.5, "y": 2, "width": 30, "height": 4}}]);
    let text = "dog at 2,2, 30x4".to_owned();
    assert_eq!((KIND.rows)(&detections), [PrintedRow { score: Some(0.5), text }]);
}
