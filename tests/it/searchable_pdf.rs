//! Searchable PDF: documents answered with a text layer, over HTTP and by the command line.

use std::path::Path;

use crate::client::{Client, Response};
use crate::daemon::{TestRoot, model_folder, write};

const MODEL: &str = "document_reader";

fn receipt() -> Vec<u8> {
    std::fs::read(model_folder(MODEL).join("golden/receipt.png")).unwrap()
}

fn invoice() -> Vec<u8> {
    std::fs::read(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/documents/invoice.pdf")).unwrap()
}

fn ask(client: &mut Client, model: &str, accept: &str, file: &[u8]) -> Response {
    let kind = if file.starts_with(b"%PDF-") { "application/pdf" } else { "image/png" };
    client.post(&format!("/v2/models/{model}/infer"), &[("content-type", kind), ("accept", accept)], file)
}

/// The exit code of `ledge infer` with these arguments, and its standard error.
fn infer(root: &TestRoot, arguments: &[&str]) -> (Option<i32>, String) {
    let output = root.command(&[&["infer", MODEL], arguments].concat()).output().unwrap();
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

/// The text of a file whose text layers are read, invisible ones too.
fn text_layer(root: &TestRoot, file: &Path) -> String {
    let output = root.command(&["infer", "layers", "--json", file.to_str().unwrap()]).output().unwrap();
    let line: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let page = &line["document"]["pages"][0];
    assert_eq!(page["source"], "text_layer", "{line}");
    // Letters that are stretched to the width of their word may stand apart.
    page["text"].as_str().unwrap().replace(' ', "")
}

#[test]
fn a_picture_becomes_a_pdf_with_its_words_and_is_made_so_once() {
    let config = std::fs::read_to_string(model_folder(MODEL).join("model.toml")).unwrap();
    let section = "[pipeline.document_reading]\n";
    let layers = config.replace(section, &format!("{section}text_layer = \"always\"\n"));
    let root = TestRoot::new().models(&[MODEL, "add_sub"]).model_as(MODEL, "layers").file("layers/model.toml", layers);
    let daemon = root.start();
    let client = &mut daemon.client();
    let answer = ask(client, MODEL, "application/pdf", &receipt());
    assert_eq!((answer.status, answer.header("content-type")), (200, Some("application/pdf")), "{answer:?}");
    let made = answer.body;
    let file = daemon.root.folder.path().join("made.pdf");
    write(&file, &made);
    let text = text_layer(&daemon.root, &file);
    let words = ["RECEIPT", "CornerCoffeeBar", "ReceiptnoA-10457", "TotalEUR13.70", "Thankyou"];
    assert!(words.iter().all(|words| text.contains(words)), "{text}");

    // The page has a text already, and those of the invoice carry theirs.
    assert_eq!(ask(client, MODEL, "application/pdf", &made).body, made);
    assert_eq!(ask(client, MODEL, "application/pdf, */*;q=0.5", &invoice()).body, invoice());

    assert_eq!(ask(client, MODEL, "*/*", &receipt()).header("content-type"), Some("application/json"));
    assert_eq!(ask(client, MODEL, "application/pdf", b"%PDF-1.7 nothing of one").status, 400);
    let other = ask(client, "add_sub", "application/pdf", &receipt());
    assert_eq!((other.status, other.error().contains("reads no documents")), (406, true), "{other:?}");
}

#[test]
fn a_command_writes_documents_as_pdf_into_a_folder() {
    let root = TestRoot::new().models(&[MODEL]);
    let scans = root.folder.path().join("scans");
    let pdfs = root.folder.path().join("pdfs");
    std::fs::create_dir(&scans).unwrap();
    write(&scans.join("receipt.png"), &receipt());
    write(&scans.join("invoice.pdf"), &invoice());
    let infer = |folder: &Path| infer(&root, &[scans.to_str().unwrap(), "--out-pdf", folder.to_str().unwrap()]);
    let (exit, told) = infer(&pdfs);
    assert_eq!(exit, Some(0), "{told}");
    assert_eq!(std::fs::read(pdfs.join("invoice.pdf")).unwrap(), invoice());
    assert!(std::fs::read(pdfs.join("receipt.pdf")).unwrap().starts_with(b"%PDF-"));

    let (exit, told) = infer(&scans);
    assert!(exit == Some(1) && told.contains("would be replaced"), "{told}");
    write(&scans.join("receipt.jpg"), &receipt());
    let (exit, told) = infer(&pdfs);
    assert!(exit == Some(1) && told.contains("would both be"), "{told}");
}

#[test]
fn documents_with_an_answer_from_an_earlier_run_get_the_pdf_that_they_lack() {
    let root = TestRoot::new().models(&[MODEL]);
    let [scan, answers, pdfs] = ["receipt.png", "answers.jsonl", "pdfs"].map(|name| root.folder.path().join(name));
    write(&scan, &receipt());
    let [file, out, into] = [&scan, &answers, &pdfs].map(|path| path.to_str().unwrap());
    let answered = |count: usize, options: &[&str]| {
        let (exit, told) = infer(&root, &[&[file, "--out", out], options].concat());
        assert!(exit == Some(0) && told.contains(&format!("{count} files answered")), "{told}");
    };
    answered(1, &[]);
    answered(0, &[]);
    answered(1, &["--out-pdf", into]);
    let made = pdfs.join("receipt.pdf");
    assert!(std::fs::read(&made).unwrap().starts_with(b"%PDF-"));
    answered(0, &["--out-pdf", into]);
    assert_eq!(std::fs::read_to_string(&answers).unwrap().lines().count(), 1);
}

#[test]
fn a_table_has_no_pdf() {
    let root = TestRoot::new().models(&[MODEL]);
    let [table, pdfs] = ["rows.csv", "pdfs"].map(|name| root.folder.path().join(name));
    write(&table, b"a,b\n1,2\n");
    let (exit, told) = infer(&root, &[table.to_str().unwrap(), "--out-pdf", pdfs.to_str().unwrap()]);
    assert!(exit == Some(1) && told.contains("run it without --out-pdf"), "{told}");
    assert!(!pdfs.exists());
}
