use ledge_documents::InvoiceXml;
use serde_json::json;

use super::steps::FoundLine;
use super::*;
use crate::backend::ModelPort;
use crate::pipeline::ocr::geometry::{PageArea, Quadrilateral};
use crate::pipeline::ocr::line::OcrLine;
use crate::pipeline::ocr::page_turn::QuarterTurns;

fn port(name: &str, shape: &[i64]) -> ModelPort {
    ModelPort { name: name.into(), datatype: DataType::Fp32, shape: shape.into() }
}

fn parts(classes: i64) -> HashMap<String, ModelSignature> {
    let signature =
        |output: &[i64]| ModelSignature { inputs: vec![port("x", &[-1, 3, -1, -1])], outputs: vec![port("y", output)] };
    [(models::FIND, signature(&[-1, 1, -1, -1])), (models::READ, signature(&[-1, -1, classes]))]
        .map(|(name, signature)| (name.to_owned(), signature))
        .into()
}

fn bind_with(
    section: &DocumentReading,
    parts: &HashMap<String, ModelSignature>,
    file: &'static [u8],
    metadata: &[(&str, &str)],
) -> Result<Arc<dyn Pipeline>, String> {
    let metadata = metadata.iter().map(|(key, text)| ((*key).to_owned(), (*text).to_owned())).collect();
    section.bind(ModelFacts {
        signature: &ModelSignature::default(),
        labels: &[].into(),
        quantization: &[].into(),
        files: &[("characters.txt".to_owned(), file.into())].into(),
        parts,
        part_metadata: &[(models::READ.to_owned(), metadata)].into(),
        fields: &[],
    })
}

fn bind(parts: &HashMap<String, ModelSignature>, characters: &'static [u8]) -> Result<Arc<dyn Pipeline>, String> {
    let section = DocumentReading { characters: Some("characters.txt".to_owned()), ..DocumentReading::default() };
    bind_with(&section, parts, characters, &[])
}

#[test]
fn characters_and_classes_belong_together() {
    assert!(bind(&parts(5), b"a\nb\nc\n").is_ok());
    assert!(bind(&parts(-1), b"a\nb\nc\n").is_ok());
    let reason = bind(&parts(7), b"a\nb\nc\n").unwrap_err();
    assert!(reason.starts_with("read has 7 classes, and characters.txt makes 5"), "{reason}");
    assert!(bind(&parts(5), b"\xff").unwrap_err().contains("not UTF-8"));
}

#[test]
fn characters_are_those_of_the_models_metadata_unless_a_file_is_named() {
    let section = DocumentReading::default();
    let bind = |classes, metadata: &[_]| bind_with(&section, &parts(classes), b"a\n", metadata);
    assert!(bind(5, &[("author", "x"), ("character", "a\nb\nc\n")]).is_ok());
    let reason = bind(7, &[("character", "a\nb\nc")]).unwrap_err();
    assert!(reason.starts_with("read has 7 classes, and \"character\" in its metadata makes 5"), "{reason}");
    let reason = bind(5, &[("author", "x")]).unwrap_err();
    assert!(reason.contains("characters of read are missing") && reason.contains("`characters`"), "{reason}");
}

#[test]
fn a_part_takes_a_picture() {
    let mut wrong = parts(5);
    wrong.get_mut(models::FIND).unwrap().inputs = vec![port("x", &[-1, 3])];
    let reason = bind(&wrong, b"a\nb\nc\n").unwrap_err();
    assert!(reason.contains("find: input \"x\" is FP32 of shape [-1, 3]"), "{reason}");
}

#[test]
fn outlines_are_the_lines_and_the_fields_of_the_first_page() {
    let page = |number: usize, left: f32| {
        let area = PageArea { left, top: 2.0, right: left + 9.0, bottom: 4.0 };
        let line = OcrLine::even("Total 2.50", Quadrilateral::upright(area), 0.9);
        document::ReadPage::new(number, (20, 9), QuarterTurns::None, document::TextSource::Models, vec![line])
    };
    let field = toml::from_str("name = 'total'\npattern = 'amount'").unwrap();
    let results = document::results(&[page(1, 1.0), page(2, 5.0)], &[field], None).unwrap();
    let json = String::from_utf8(results[1].strings().unwrap().next().unwrap().to_vec()).unwrap();
    let outlines = document::outlines(&json).unwrap();
    let found: Vec<_> = outlines.iter().map(|outline| (outline.field.as_deref(), outline.corners[1])).collect();
    assert_eq!(found, [(None, [10.0, 2.0]), (Some("total"), [10.0, 2.0])]);
    assert_eq!(document::outlines("{}"), None);
}

#[test]
fn the_xml_of_a_file_is_compared_with_its_pages() {
    let line = |text: &str, left: f32, top: f32| {
        let area = PageArea { left, top, right: left + 60.0, bottom: top + 10.0 };
        OcrLine::even(text, Quadrilateral::upright(area), 0.99)
    };
    let rows = [("Net", "100.00"), ("VAT 19 %", "19.00"), ("Total EUR", "119.00")];
    let lines = rows.iter().zip(1_u8..).flat_map(|((label, amount), row)| {
        let top = 20.0 * f32::from(row);
        [line(label, 10.0, top), line(amount, 150.0, top)]
    });
    let head = [line("Hill & Sons Ltd", 10.0, 0.0), line("Date 2026-11-24", 150.0, 0.0)];
    let lines = head.into_iter().chain(lines).collect();
    let page = document::ReadPage::new(1, (300, 100), QuarterTurns::None, document::TextSource::TextLayer, lines);
    let fields = ["total", "document_date", "document_number", "supplier"].map(|pattern| {
        let name = pattern.trim_start_matches("document_");
        toml::from_str(&format!("name = '{name}'\npattern = '{pattern}'\nthreshold = 0.3")).unwrap()
    });
    let answer = |invoice: &InvoiceXml| -> serde_json::Value {
        let results = document::results(std::slice::from_ref(&page), &fields, Some(invoice)).unwrap();
        serde_json::from_slice(results[1].strings().unwrap().next().unwrap()).unwrap()
    };
    let text = |text: &str| Some(text.to_owned());
    let stated = InvoiceXml { total: text("119.00"), currency: text("EUR"), ..InvoiceXml::default() };
    let supplier = text("Hill & Sons");
    let more = InvoiceXml { number: text("R-7"), date: text("2026-11-24"), supplier, ..stated.clone() };
    let same = answer(&more)["fields"].clone();
    assert_eq!((&same["total"]["source"], &same["total"]["text"]), (&json!("xml"), &json!("119.00")), "{same}");
    assert_eq!(same["total"]["value"], json!({"amount": "119.00", "currency": "EUR"}));
    assert_eq!(same["date"]["source"], "xml");
    // The page writes the name with its legal form.
    let supplier = &same["supplier"];
    assert_eq!((&supplier["value"], &supplier["text"]), (&json!("Hill & Sons"), &json!("Hill & Sons Ltd")));
    // The page has no number, so only the XML says it.
    assert_eq!((&same["number"]["value"], same["number"].get("box")), (&json!("R-7"), None));

    let other = answer(&InvoiceXml { total: text("11.90"), ..stated });
    assert_eq!(other["fields"].get("total"), None, "{other}");
    let doubtful = &other["doubtful"]["total"];
    assert_eq!((&doubtful["value"]["amount"], &doubtful["xml"]["amount"]), (&json!("119.00"), &json!("11.90")));
    assert!(doubtful["confidence"].as_f64().unwrap() <= 0.5, "{doubtful}");
}

/// A page with these rows of a text and an amount, and a heading with a date and a number.
fn receipt(page: usize, head: [&str; 3], rows: &[(&str, &str)]) -> document::ReadPage {
    let line = |text: &str, left: f32, top: f32| {
        let area = PageArea { left, top, right: left + 60.0, bottom: top + 10.0 };
        OcrLine::even(text, Quadrilateral::upright(area), 0.99)
    };
    let head = head.into_iter().zip([10.0, 110.0, 210.0]).map(|(text, left)| line(text, left, 0.0));
    let rows = rows.iter().zip(1_u8..).flat_map(|((label, amount), row)| {
        let top = 20.0 * f32::from(row);
        [line(label, 10.0, top), line(amount, 150.0, top)]
    });
    document::ReadPage::new(
        page,
        (300, 100),
        QuarterTurns::None,
        document::TextSource::TextLayer,
        head.chain(rows).collect(),
    )
}

/// The answer to these pages, with fields that are sure from 0.3 on.
fn answer(pages: &[document::ReadPage]) -> serde_json::Value {
    let fields = ["total", "document_date", "document_number", "supplier"].map(|pattern| {
        let name = pattern.trim_start_matches("document_");
        toml::from_str(&format!("name = '{name}'\npattern = '{pattern}'\nthreshold = 0.3")).unwrap()
    });
    let results = document::results(pages, &fields, None).unwrap();
    serde_json::from_slice(results[1].strings().unwrap().next().unwrap()).unwrap()
}

#[test]
fn a_stack_of_receipts_in_one_file_is_several_documents() {
    let first = receipt(
        1,
        ["Hill & Sons Ltd", "Date 2026-11-24", "Invoice No. R-2048"],
        &[("Net", "100.00"), ("VAT 19 %", "19.00"), ("Total EUR", "119.00")],
    );
    let second = receipt(
        2,
        ["Corner Shop Ltd", "Date 2026-11-25", "Invoice No. 77120"],
        &[("Net", "10.00"), ("VAT 19 %", "1.90"), ("Total EUR", "11.90")],
    );
    let third = receipt(3, ["Corner Shop Ltd", "Page 2", ""], &[("Terms", "14 days")]);
    let answer = answer(&[first, second, third]);
    assert_eq!(answer["fields"], json!({}), "{answer}");
    let documents = answer["documents"].as_array().unwrap();
    let found = documents.iter().map(|document| {
        let fields = &document["fields"];
        let pages = [&document["first_page"], &document["last_page"]].map(|page| page.as_u64().unwrap());
        (pages, fields["total"]["value"]["amount"].as_str(), fields["number"]["value"].as_str())
    });
    let expected = [([1, 1], Some("119.00"), Some("R-2048")), ([2, 3], Some("11.90"), Some("77120"))];
    assert_eq!(found.collect::<Vec<_>>(), expected, "{answer}");
    assert_eq!(documents[1]["fields"]["total"]["page"], 2);
}

#[test]
fn pages_that_do_not_surely_begin_another_document_are_one() {
    let head = ["Hill & Sons Ltd", "Date 2026-11-24", "Invoice No. R-2048"];
    let sums = [("Net", "100.00"), ("VAT 19 %", "19.00"), ("Total EUR", "119.00")];
    let first = || receipt(1, head, &sums);
    let others = [
        receipt(2, head, &[("Net", "50.00"), ("VAT 19 %", "9.50"), ("Total EUR", "59.50")]),
        receipt(2, ["Hill & Sons Ltd", "Date 2026-11-25", ""], &sums),
        receipt(2, ["Corner Shop Ltd", "Date 2026-11-25", "Invoice No. 77120"], &[("Oak", "4 days")]),
    ];
    for other in others {
        let answer = answer(&[first(), other]);
        assert_eq!(answer.get("documents"), None, "{answer}");
    }
}

#[test]
fn words_that_are_missing_are_named() {
    let pipeline = bind(&parts(5), b"a\nb\nc\n").unwrap();
    let results = document::results(&[], &[], None).unwrap();
    let results: Vec<_> = results.iter().collect();
    let none = GoldenExpectation { label: None, min_score: None, detections: None, words: None };
    assert_eq!(pipeline.judge(&results, none), Ok(()));
    let words = ["Total".to_owned()];
    let reason = pipeline.judge(&results, GoldenExpectation { words: Some(&words), ..none }).unwrap_err();
    assert!(reason.contains("\"Total\""), "{reason}");
    assert_eq!(pipeline.answer(&results).unwrap().get(), r#"{"pages":[],"fields":{}}"#);
}

#[test]
fn settings_out_of_their_range_are_mistakes() {
    let keys = |toml: &str| {
        let section: DocumentReading = toml::from_str(toml).unwrap();
        section.mistakes().into_iter().map(|mistake| mistake.key).collect::<Vec<_>>()
    };
    assert!(keys("").is_empty());
    assert_eq!(keys("longer_side_max = 8000"), ["longer_side_max"]);
    assert_eq!(keys("shorter_side_min = 2000"), ["shorter_side_min"]);
    assert_eq!(
        keys("line_threshold = nan\nmin_confidence = 2.0\nlines_max = 0"),
        ["line_threshold", "min_confidence", "lines_max"]
    );
}

#[test]
fn a_page_with_more_text_than_a_page_has_is_refused() {
    let area = |width| PageArea { left: 0.0, top: 0.0, right: width, bottom: 10.0 };
    let lines = |count| vec![FoundLine::at(Quadrilateral::upright(area(1000.0))); count];
    // 1000 by 10 pixels are 3200 by 48, the widest that a line is cut.
    assert!(OcrSteps::check_length(&lines(312)).is_ok());
    let reason = OcrSteps::check_length(&lines(313)).unwrap_err().to_string();
    assert!(reason.contains("313 lines, which are 1001600 pixels long"), "{reason}");
}
