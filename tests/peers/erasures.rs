//! Certificates of erasure, checked by a program that has nothing of Ledge: Python with the package `cryptography`.

use std::path::Path;
use std::process::{Command, Output};

use crate::daemon::{TestRoot, setup_root, write};
use crate::tools::run;

const VIEWS: &str = "
[[entity]]
name = 'customer'
join_key = 'customer_id'
value_type = 'String'

[[feature_view]]
name = 'spend'
entities = ['customer']
source = { name = 'spend_push' }
schema = [{ name = 'total', dtype = 'Float64' }]
";

fn check(certificate: &Path, key: &str, entity: &str) -> Output {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/peers/clients/certificate.py");
    let mut python = Command::new(setup_root().join("platform/bin/python"));
    python.arg("-B").arg(script).arg(certificate).arg(key).arg(entity).output().unwrap()
}

#[test]
fn python_accepts_a_certificate_and_refuses_changes_another_key_and_another_entity() {
    let daemon = TestRoot::new().views(VIEWS).start();
    let folder = tempfile::tempdir().unwrap();
    let certificate = folder.path().join("erasure");
    run(&mut daemon.root.command(&["features", "push", "spend", "customer_id=Zoë", "total=7"]));
    let to = certificate.display().to_string();
    run(&mut daemon.root.command(&["features", "erase", "customer_id=Zoë", "--certificate", &to]));
    let key = daemon.root.command(&["audit", "key"]).output().unwrap().stdout;
    let key = String::from_utf8(key).unwrap().trim_end().to_owned();

    let accepted = check(&certificate, &key, "customer_id=Zoë");
    let told = String::from_utf8_lossy(&accepted.stdout).into_owned();
    assert!(accepted.status.success() && told.contains("spend 1; record"), "{accepted:?}");
    assert!(!check(&certificate, &key, "customer_id=Zoe").status.success());
    let other = TestRoot::new().start();
    let other = other.root.command(&["audit", "key"]).output().unwrap().stdout;
    assert!(!check(&certificate, String::from_utf8(other).unwrap().trim_end(), "customer_id=Zoë").status.success());

    let whole = std::fs::read_to_string(&certificate).unwrap();
    let changed = folder.path().join("changed");
    // A digit of the statement, the record, a hash of the proof, the root and the signature.
    for part in ["records", "extra ", "index ", "\\n\\nledge.audit", "\u{2014} ledge.audit"] {
        let at = whole.find(part).unwrap() + part.len() + 40;
        let at = (at..whole.len())
            .find(|at| whole.is_char_boundary(*at) && whole.as_bytes()[*at].is_ascii_alphanumeric())
            .unwrap();
        let mut bytes = whole.clone().into_bytes();
        bytes[at] = if bytes[at] == b'1' { b'2' } else { b'1' };
        write(&changed, &bytes);
        assert!(!check(&changed, &key, "customer_id=Zoë").status.success(), "{part}");
    }
}
