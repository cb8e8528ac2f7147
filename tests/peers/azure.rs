//! The client of Azure AI Document Intelligence for Python, unmodified.

use std::path::Path;
use std::process::Command;

use crate::access_mqtt::key;
use crate::daemon::{TestRoot, model_folder, setup_root};
use crate::tools::run;

#[test]
fn the_client_of_azure_gets_analyses_fields_and_searchable_pdfs() {
    let python = setup_root().join("peers/azure/bin/python3");
    assert!(python.exists(), "{} is missing: `make setup-azure` gets it", python.display());
    let root = TestRoot::new().models(&["document_reader"]).set("access.loopback=[]");
    let keys = ["paperless", "foreign"].map(|name| key(&root, &[name, "--role", "infer"]));
    let daemon = root.start();
    let checkout = Path::new(env!("CARGO_MANIFEST_DIR"));
    run(Command::new(python)
        .arg(checkout.join("tests/peers/clients/azure_calls.py"))
        .arg(daemon.address.port().to_string())
        .args(&keys)
        .arg(model_folder("document_reader").join("golden/receipt.png"))
        .arg(checkout.join("tests/data/documents/invoice.pdf")));
}
