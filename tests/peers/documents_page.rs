//! The commands of docs/documents.md, with the addresses of the test in place of the usual ones.

use std::path::Path;
use std::process::{Command, Output, Stdio};

use crate::boxes::{root, start};
use crate::broker::Broker;
use crate::page::commands;

#[test]
fn the_page_on_documents_does_what_it_says() {
    const PAGE: &str = include_str!("../../docs/documents.md");
    let broker = Broker::new();
    let daemon = start(root(&broker).models(&["document_reader"]));
    let files = crate::daemon::model_folder("document_reader").join("golden");
    let command = |text: &str| {
        let text = [
            ("127.0.0.1:8000", daemon.address.to_string()),
            ("mosquitto_sub ", format!("exec mosquitto_sub -W 20 -p {} ", broker.port)),
            ("mosquitto_pub ", format!("mosquitto_pub -p {} ", broker.port)),
            (" &", String::new()),
            ("/BOX/", "/box/".to_owned()),
            ("models/document_reader/golden", files.display().to_string()),
            ("ledge infer", format!("{} infer --url http://{}", env!("CARGO_BIN_EXE_ledge"), daemon.address)),
        ]
        .into_iter()
        .fold(text.to_owned(), |text, (usual, here)| text.replace(usual, &here));
        let checkout = Path::new(env!("CARGO_MANIFEST_DIR"));
        let mut command = Command::new("sh");
        command.args(["-c", &text]).current_dir(checkout).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    };
    let read = |output: Output| {
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let lines = |heading: &str| commands(PAGE, heading).into_iter().flatten().map(|line| line.text).collect::<Vec<_>>();
    let run = |line: &String| read(command(line).output().unwrap());
    let [json, text, picture, subscribe, publish, python, pdf] = lines("\n## Ask it\n").try_into().unwrap();
    let [json, text, python, pdf] = [json, text, python, pdf].map(|line| run(&line));
    let folder = tempfile::tempdir().unwrap();
    let found = folder.path().join("found.png");
    run(&picture.replace("found.png", &found.display().to_string()));
    assert!(std::fs::read(found).unwrap().starts_with(b"\x89PNG"));
    // The subscription may come after the answer: then it ends without one.
    let ask = || {
        let subscription = command(&subscribe).spawn().unwrap();
        run(&publish);
        subscription.wait_with_output().unwrap()
    };
    let message = read((0..3).map(|_| ask()).find(|output| output.status.success()).unwrap());
    for answer in [&json, &message] {
        assert!(answer.contains(r#""total":{"value":{"amount":"13.70""#), "{answer}");
    }
    assert!(text.starts_with("RECEIPT\n") && text.contains("Coffee 6.40"), "{text}");
    assert!(python.contains("'amount': '13.70'"), "{python}");
    assert!(pdf.contains(r#""iban""#) && pdf.contains("DE02120300000000202051"), "{pdf}");
    let [pages] = lines("\n## PDF, TIFF, GIF and BMP\n").try_into().unwrap();
    let pages = run(&pages);
    assert!(
        pages.starts_with("Hill & Sons Joinery\nInvoice No. R-2048\n") && pages.contains("\u{c}\nTerms\n"),
        "{pages}"
    );
}
