//! The audit log read by others: Go's code for transparency logs, which knows nothing of Ledge.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use tempfile::TempDir;

use crate::audit_log::Attacked;
use crate::daemon::write;
use crate::tools::{path_of, run};

/// The folder of Debian's packages of Go code.
const PACKAGES: &str = "/usr/share/gocode";

/// The verifier, compiled.
struct Verifier {
    folder: TempDir,
}

impl Verifier {
    fn new() -> Self {
        let module = Path::new(PACKAGES).join("src/golang.org/x/mod/sumdb/tlog");
        assert!(module.is_dir(), "{} is not there: `make setup-peers` installs it", module.display());
        let folder = tempfile::tempdir().unwrap();
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/peers/clients/audit_verifier.go");
        let mut build = Command::new(path_of("go"));
        build.arg("build").arg("-o").arg(folder.path().join("verifier")).arg(source);
        build.env("GO111MODULE", "off").env("GOPATH", PACKAGES).env("GOFLAGS", "").env("GOPROXY", "off");
        run(build.env("GOCACHE", folder.path().join("cache")));
        Self { folder }
    }

    fn verify(&self, key: &Path, log: &Path, rest: &[&Path]) -> Output {
        let mut command = Command::new(self.folder.path().join("verifier"));
        command.arg(key).arg(log).args(rest).output().unwrap()
    }
}

#[test]
fn go_accepts_the_log_its_growth_and_its_proofs_and_refuses_each_attack() {
    let (attacked, verifier) = (Attacked::new(), Verifier::new());
    let at = |name: &str| attacked.folder.path().join(name);
    write(&at("vkey"), attacked.written.key.verifier_key().as_bytes());
    let whole = attacked.whole.display().to_string();
    let proofs: Vec<PathBuf> = [0, 255, 256, 511, 767, 998, 999].map(|seq| at(&format!("{seq}.tlog-proof"))).into();
    for proof in &proofs {
        let seq = proof.file_stem().unwrap().to_str().unwrap();
        let key = attacked.written.key.verifier_key();
        let to = proof.display().to_string();
        run(&mut attacked.written.root.command(&["audit", "prove", seq, &whole, "--key", key, "--out", &to]));
    }
    let given: Vec<&Path> =
        [attacked.earlier.as_path()].into_iter().chain(proofs.iter().map(PathBuf::as_path)).collect();
    let accepted = verifier.verify(&at("vkey"), &attacked.whole, &given);
    assert_eq!(accepted.stdout, b"ok\n", "{}", String::from_utf8_lossy(&accepted.stderr));

    for attack in &attacked.attacks {
        let refused = verifier.verify(&at("vkey"), &attack.folder, &[&attacked.earlier]);
        assert!(!refused.status.success(), "{}", attack.name);
        assert!(refused.stdout.is_empty() && !refused.stderr.is_empty(), "{}", attack.name);
    }

    // A proof is valid only for its record and its place.
    let proof = std::fs::read_to_string(&proofs[2]).unwrap();
    let forged = at("forged.tlog-proof");
    let other = std::fs::read_to_string(&proofs[3]).unwrap();
    let record = |proof: &str| proof.lines().nth(1).unwrap().to_owned();
    for changed in [proof.replacen("index 256", "index 257", 1), proof.replacen(&record(&proof), &record(&other), 1)] {
        write(&forged, changed.as_bytes());
        let refused = verifier.verify(&at("vkey"), &attacked.whole, &[&attacked.earlier, &forged]);
        assert!(!refused.status.success(), "{changed}");
    }
}
