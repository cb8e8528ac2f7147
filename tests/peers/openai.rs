//! OpenAI's own client for Python, unmodified.

use std::path::Path;
use std::process::Command;

use crate::access_mqtt::key;
use crate::daemon::{TestRoot, model_folder, setup_root};
use crate::tools::run;

#[test]
fn the_client_of_openai_gets_vectors_models_and_errors_in_its_own_form() {
    let python = setup_root().join("peers/openai/bin/python3");
    assert!(python.exists(), "{} is missing: `make setup-openai` gets it", python.display());
    let root = TestRoot::new().models(&["all_minilm_l6_v2"]).set("access.loopback=[]");
    let key = key(&root, &["search", "--role", "infer"]);
    let daemon = root.start();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/peers/clients/openai_calls.py");
    let mut client = Command::new(python);
    run(client
        .arg(script)
        .args([&daemon.address.port().to_string(), &key])
        .arg(model_folder("all_minilm_l6_v2").join("golden")));
}
