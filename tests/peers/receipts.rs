//! Receipts and invoices that are drawn for the test, with their expected text.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use serde::Deserialize;
use serde_json::Value;

use crate::daemon::{TestRoot, setup_root};
use crate::tools::run;

/// Each of ten layouts in each of five languages.
const COUNT: &str = "50";

/// Fonts with accents and the euro sign, of Debian's package `fonts-dejavu-core`, and Pillow's own.
const FONTS: [&str; 4] = [
    "/usr/share/fonts/truetype/dejavu/DejaVuSans.ttf",
    "/usr/share/fonts/truetype/dejavu/DejaVuSansMono.ttf",
    "/usr/share/fonts/truetype/dejavu/DejaVuSerif.ttf",
    "-",
];

#[derive(Deserialize)]
struct Truth {
    total: String,
    date: String,
    number: String,
    words: Vec<String>,
}

impl Truth {
    /// The number of words that are in a text. Spaces are ignored, because models of lines are not sure of those.
    fn words_in(&self, text: &str) -> usize {
        let mut rest: String = text.split_whitespace().collect();
        let is_in = |word: &&String| {
            rest.find(word.as_str()).is_some_and(|at| {
                rest.replace_range(at..at + word.len(), " ");
                true
            })
        };
        self.words.iter().filter(is_in).count()
    }
}

#[derive(Debug, Default)]
struct Counts {
    right: usize,
    wrong: usize,
    /// Right, and answered as doubtful.
    doubtful: usize,
    missing: usize,
}

#[test]
fn totals_and_dates_of_receipts_and_invoices_in_five_languages_are_found() {
    let python = setup_root().join("peers/deepstack/bin/python3");
    assert!(python.exists(), "{} is missing: `make setup-deepstack` gets it, with Pillow", python.display());
    assert!(Path::new(FONTS[0]).exists(), "{} is missing: `make setup-peers` gets it", FONTS[0]);
    let folder = tempfile::tempdir().unwrap();
    let draw = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/peers/clients/receipts.py");
    run(Command::new(python).arg(draw).arg(folder.path()).arg(COUNT).args(FONTS));
    let truths = std::fs::read(folder.path().join("truth.json")).unwrap();
    let truths: BTreeMap<String, Truth> = serde_json::from_slice(&truths).unwrap();

    let root = TestRoot::new().models(&["document_reader"]);
    let mut infer = root.command(&["infer", "document_reader", "--format", "jsonl"]);
    infer.args(truths.keys().map(|name| folder.path().join(name)));
    let output = infer.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));

    let mut counts: BTreeMap<&str, Counts> = BTreeMap::new();
    let (mut words, mut words_read) = (0, 0);
    for line in String::from_utf8(output.stdout).unwrap().lines() {
        let answer: Value = serde_json::from_str(line).unwrap();
        let name = Path::new(answer["file"].as_str().unwrap()).file_name().unwrap().to_str().unwrap();
        let truth = &truths[name];
        words += truth.words.len();
        words_read += truth.words_in(answer["document"]["pages"][0]["text"].as_str().unwrap());
        let expected = [("total", &truth.total), ("date", &truth.date), ("number", &truth.number)];
        for (field, expected) in expected {
            let value = |kind: &str| {
                let value = &answer["document"][kind][field]["value"];
                value["amount"].as_str().or(value.as_str()).map(str::to_owned)
            };
            let (sure, doubtful) = (value("fields"), value("doubtful"));
            let counts = counts.entry(field).or_default();
            match (&sure, &doubtful) {
                (Some(value), _) if value == expected => counts.right += 1,
                (Some(_), _) => counts.wrong += 1,
                (None, Some(value)) if value == expected => counts.doubtful += 1,
                (None, _) => counts.missing += 1,
            }
            if sure.as_ref() != Some(expected) {
                let text = &answer["document"]["pages"][0]["text"];
                println!("{name}: {field} is {expected}, got {sure:?}, doubtful {doubtful:?} on\n{text}");
            }
        }
    }
    println!("{counts:?}, {words_read} of {words} words");
    assert!(words_read * 100 >= words * 98, "{words_read} of {words} words");
    // A date that stands in a table beside the due date is doubtful.
    for (field, least, with_doubtful) in [("total", 48, 49), ("date", 44, 48), ("number", 43, 46)] {
        let counts = &counts[field];
        assert_eq!(counts.right + counts.wrong + counts.doubtful + counts.missing, 50);
        assert!(counts.right >= least && counts.wrong <= 1, "{field}: {counts:?}");
        assert!(counts.right + counts.doubtful >= with_doubtful, "{field}: {counts:?}");
    }
}
