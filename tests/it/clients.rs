//! Clients that people have already.

use std::path::Path;
use std::process::Command;

use crate::daemon::{TestRoot, setup_root};

#[test]
fn the_official_tritonclient_works_in_json_and_in_binary() {
    let daemon = TestRoot::new().models(&["add_sub", "identity_string", "wine_mlp"]).start();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clients/triton_http.py");
    let packages = setup_root().join("tools/python-test");
    assert!(packages.is_dir(), "{} is missing: `make test` prepares it", packages.display());
    let output = Command::new("python3")
        .arg(script)
        .arg(daemon.address.to_string())
        .env("PYTHONPATH", packages)
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .output()
        .unwrap();
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && out.trim() == "ok", "{out}{err}");
}
