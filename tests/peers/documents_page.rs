//! The commands of docs/documents.md, with the addresses of the test in place of the usual ones.

use std::path::Path;
use std::process::Command;

use crate::boxes::{root, start};
use crate::broker::Broker;
use crate::page::commands;

#[test]
fn the_page_on_documents_does_what_it_says() {
    const PAGE: &str = include_str!("../../docs/documents.md");
    let broker = Broker::new();
    let daemon = start(root(&broker).models(&["document_reader"]));
    let files = crate::daemon::model_folder("document_reader").join("golden");
    let run = |text: &str| {
        let text = [
            ("127.0.0.1:8000", daemon.address.to_string()),
            ("mosquitto_rr ", format!("mosquitto_rr -W 60 -p {} ", broker.port)),
            ("/BOX/", "/box/".to_owned()),
            ("models/document_reader/golden", files.display().to_string()),
            ("ledge infer", format!("{} infer --url http://{}", env!("CARGO_BIN_EXE_ledge"), daemon.address)),
        ]
        .into_iter()
        .fold(text.to_owned(), |text, (usual, here)| text.replace(usual, &here));
        let checkout = Path::new(env!("CARGO_MANIFEST_DIR"));
        let output = Command::new("sh").args(["-c", &text]).current_dir(checkout).output().unwrap();
        assert!(output.status.success(), "{text}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let said = |heading: &str| commands(PAGE, heading).iter().flatten().map(|line| run(&line.text)).collect::<Vec<_>>();
    let [json, text, message, python, pdf] = said("\n## Ask it\n").try_into().unwrap();
    for answer in [&json, &message] {
        assert!(answer.contains(r#""total":{"value":{"amount":"13.70""#), "{answer}");
    }
    assert!(text.starts_with("RECEIPT\n") && text.contains("Coffee 6.40"), "{text}");
    assert!(python.contains("'amount': '13.70'"), "{python}");
    assert!(pdf.contains(r#""iban""#) && pdf.contains("DE02120300000000202051"), "{pdf}");
    let [pages] = said("\n## PDF and TIFF\n").try_into().unwrap();
    assert!(
        pages.starts_with("Hill & Sons Joinery\nInvoice No. R-2048\n") && pages.contains("\u{c}\nTerms\n"),
        "{pages}"
    );
}
