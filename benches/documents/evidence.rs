//! Prints the candidates for the fields of documents with what speaks for each, a line of JSON for each document, for
//! `fit.py`. Reads answers of the reader of documents, as `measure.py --save FILE --lines` keeps them.

use std::io::{BufRead, Write};

use ledge_engine::pipeline::ocr::fields::{DocumentFieldPattern, DocumentText, FieldCandidate};
use ledge_engine::pipeline::ocr::geometry::{Point, Quadrilateral};
use ledge_engine::pipeline::ocr::line::OcrLine;
use ledge_engine::pipeline::ocr::order::{self, RowOfLines};
use serde_json::{Value, json};

/// The fields of the truth with their forms.
const FIELDS: [(&str, DocumentFieldPattern); 10] = [
    ("total", DocumentFieldPattern::Total),
    ("net", DocumentFieldPattern::Net),
    ("tax", DocumentFieldPattern::Tax),
    ("currency", DocumentFieldPattern::Currency),
    ("supplier", DocumentFieldPattern::Supplier),
    ("date", DocumentFieldPattern::DocumentDate),
    ("due_date", DocumentFieldPattern::DueDate),
    ("number", DocumentFieldPattern::DocumentNumber),
    ("iban", DocumentFieldPattern::Iban),
    ("vat_id", DocumentFieldPattern::VatId),
];

fn main() -> std::io::Result<()> {
    let mut out = std::io::BufWriter::new(std::io::stdout().lock());
    for line in std::io::stdin().lock().lines() {
        let answer: Value = serde_json::from_str(&line?)?;
        let pages: Vec<Vec<OcrLine>> =
            array(answer.get("pages")).map(|page| array(page.get("lines")).filter_map(ocr_line).collect()).collect();
        let rows: Vec<Vec<RowOfLines>> =
            pages.iter().map(|lines| order::rows(&lines.iter().map(OcrLine::area).collect::<Vec<_>>())).collect();
        let document = DocumentText::new(rows.iter().map(Vec::as_slice).zip(pages.iter().map(Vec::as_slice)));
        let fields: serde_json::Map<String, Value> = FIELDS
            .iter()
            .map(|(name, pattern)| {
                let found = document.candidates(*pattern);
                ((*name).to_owned(), found.iter().map(|one| candidate(one, &found)).collect())
            })
            .collect();
        writeln!(out, "{}", json!({"set": answer.get("set"), "file": answer.get("file"), "fields": fields}))?;
    }
    out.flush()
}

fn array(value: Option<&Value>) -> impl Iterator<Item = &Value> {
    value.and_then(Value::as_array).into_iter().flatten()
}

fn ocr_line(line: &Value) -> Option<OcrLine> {
    let corners: Vec<[f32; 2]> = serde_json::from_value(line.get("box")?.clone()).ok()?;
    let corners: Vec<Point> = corners.into_iter().map(|[x, y]| Point::new(x, y)).collect();
    let area = Quadrilateral(corners.try_into().ok()?);
    let confidence = serde_json::from_value(line.get("confidence")?.clone()).ok()?;
    let words: Vec<f32> = array(line.get("words"))
        .filter_map(|word| serde_json::from_value(word.get("confidence")?.clone()).ok())
        .collect();
    Some(OcrLine::even(line.get("text")?.as_str()?, area, confidence).with_words(&words))
}

/// A candidate with its facts, and the positions of those that agree with it.
fn candidate(candidate: &FieldCandidate, all: &[FieldCandidate]) -> Value {
    let facts: serde_json::Map<String, Value> =
        candidate.evidence.facts().iter().map(|(name, strength)| ((*name).to_owned(), json!(strength))).collect();
    let agrees = |other: &(usize, &FieldCandidate)| candidate.value.agrees(&other.1.value);
    let agreeing: Vec<usize> = all.iter().enumerate().filter(agrees).map(|(index, _)| index).collect();
    json!({"value": candidate.value, "facts": facts, "agreeing": agreeing})
}
