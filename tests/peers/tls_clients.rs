//! Clients of other makers over TLS: curl, OpenSSL and Python; and a restart in place under an https:// address.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::certificates::{Authority, Identity};
use crate::daemon::{TestDaemon, TestRoot, setup_root, write};
use crate::platform::{Fleet, wine};
use crate::tls_kit::{LISTEN, TlsClient, with_certificate};
use crate::tools::{interpreter, path_of, run};

/// A box that wants client certificates, and one of a client.
struct Closed {
    daemon: TestDaemon,
    folder: PathBuf,
}

impl Closed {
    fn start() -> Self {
        let authority = Authority::new();
        let root = with_certificate(TestRoot::new().models(&["wine_mlp"]), &authority)
            .set("http.tls.client_certificates=required")
            .set("http.tls.client_ca_file=\"clients.pem\"");
        let folder = root.folder.path().to_owned();
        let Identity { certificate, key } = authority.issue("till-7");
        for (file, text) in [("clients.pem", authority.pem()), ("till.pem", &certificate), ("till.key", &key)] {
            write(&folder.join(file), text.as_bytes());
        }
        Self { daemon: root.start(), folder }
    }

    fn file(&self, name: &str) -> String {
        self.folder.join(name).display().to_string()
    }

    fn url(&self, path: &str) -> String {
        format!("https://{}{path}", self.daemon.address)
    }

    fn curl(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(path_of("curl"));
        command.args(["--silent", "--show-error", "--fail", "--cacert", &self.file("clients.pem")]).args(arguments);
        command
    }

    /// The result of a handshake of OpenSSL with these arguments, and its output.
    fn openssl(&self, arguments: &[&str]) -> (bool, String) {
        let mut command = Command::new(path_of("openssl"));
        command.args(["s_client", "-connect", &self.daemon.address.to_string(), "-CAfile", &self.file("clients.pem")]);
        command.args(["-cert", &self.file("till.pem"), "-key", &self.file("till.key"), "-verify_return_error"]);
        let output = command.args(arguments).stdin(Stdio::null()).output().unwrap();
        let text = [output.stdout, output.stderr].concat();
        (output.status.success(), String::from_utf8_lossy(&text).into_owned())
    }
}

#[test]
fn curl_is_served_with_the_right_certificates_alone() {
    let closed = Closed::start();
    let (certificate, key, url) = (closed.file("till.pem"), closed.file("till.key"), closed.url("/v2"));
    let answer = run(&mut closed.curl(&["--cert", &certificate, "--key", &key, &url]));
    assert!(answer.contains("\"ledge\""), "{answer}");
    let refused = closed.curl(&[&url]).stdin(Stdio::null()).output().unwrap();
    assert!(!refused.status.success(), "without a client certificate");
    let mut distrusting = Command::new(path_of("curl"));
    let refused = distrusting.args(["--silent", "--cert", &certificate, "--key", &key, &url]).output().unwrap();
    assert_eq!(refused.status.code(), Some(60), "the system does not trust the box's authority");
    let plain = format!("http://{}/v2", closed.daemon.address);
    let told = run(Command::new(path_of("curl")).args(["--silent", &plain]));
    assert!(told.contains("use https://"), "{told}");
    // HTTP/2 is offered by curl, and not taken.
    let version = run(&mut closed.curl(&[
        "--cert",
        &certificate,
        "--key",
        &key,
        "-o",
        "/dev/null",
        "-w",
        "%{http_version}",
        &url,
    ]));
    assert_eq!(version, "1.1");
}

#[test]
fn curl_trusts_the_self_signed_certificate_when_told_to() {
    let daemon = TestRoot::new().set(LISTEN).set("http.tls.self_signed=true").start();
    let trusted = daemon.root.folder.path().join("tls/self-signed.pem");
    let url = format!("https://{}/v2", daemon.address);
    let answer =
        run(Command::new(path_of("curl")).args(["--silent", "--show-error", "--cacert"]).arg(&trusted).arg(&url));
    assert!(answer.contains("\"ledge\""), "{answer}");
    let print = ["x509", "-noout", "-fingerprint", "-sha256", "-in"];
    let fingerprint = run(Command::new(path_of("openssl")).args(print).arg(&trusted));
    let shown = run(&mut daemon.root.command(&["tls", "show"]));
    assert!(shown.contains(fingerprint.trim().split('=').nth(1).unwrap()), "{fingerprint} {shown}");
}

#[test]
fn openssl_gets_tls_1_2_and_1_3_with_forward_secrecy_and_nothing_older() {
    let closed = Closed::start();
    for (version, name) in [("-tls1_2", "TLSv1.2"), ("-tls1_3", "TLSv1.3")] {
        let (served, text) = closed.openssl(&[version]);
        assert!(served && text.contains("Verify return code: 0 (ok)") && text.contains(name), "{text}");
    }
    // The security level lets OpenSSL itself offer the old ones.
    for old in ["-tls1", "-tls1_1"] {
        let (served, text) = closed.openssl(&[old, "-cipher", "ALL:@SECLEVEL=0"]);
        assert!(!served && text.contains("alert"), "{old}: {text}");
    }
    for weak in ["AES128-SHA", "ECDHE-RSA-AES128-SHA", "AES128-GCM-SHA256", "NULL-SHA256"] {
        let (served, text) = closed.openssl(&["-tls1_2", "-cipher", &format!("{weak}:@SECLEVEL=0")]);
        assert!(!served, "{weak}: {text}");
    }
}

#[test]
fn python_clients_ask_models_over_tls() {
    let closed = Closed::start();
    let packages = setup_root().join("tools/python-test");
    assert!(packages.join("tritonclient").is_dir(), "{}: `make setup-test` gets it", packages.display());
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/peers/clients/tls_calls.py");
    let mut command = interpreter();
    command.arg(script).arg(closed.daemon.address.to_string());
    command.args(["clients.pem", "till.pem", "till.key"].map(|file| closed.file(file)));
    command.arg(wine().to_string());
    let out = run(command.env("PYTHONPATH", packages).env("PYTHONDONTWRITEBYTECODE", "1"));
    assert_eq!(out.trim(), "ok");
}

#[test]
fn a_restart_in_place_keeps_the_https_port() {
    let authority = Authority::new();
    let fleet = Fleet::new("");
    let root = fleet.enrol(with_certificate(TestRoot::new().models(&["wine_mlp"]), &authority));
    let daemon = root.start();
    let trusting = TlsClient::new(authority.pem(), None);
    assert!(trusting.is_served(daemon.address));
    let file = daemon.root.folder.path().join("settings.toml");
    write(&file, b"serving.max_queue_size = 17\n");
    fleet.platform.add(&["configuration", "add"], "night", 1, &file);
    fleet.platform.start("r-1", "configurations/night/1", &[]);
    daemon.unix_client().post("/updates/check", &[], b"");
    daemon.wait_for_event("update.restart_requested");
    // A client that connects meanwhile waits, and is not refused.
    assert!(trusting.is_served(daemon.address));
    let line = daemon.wait_for_event("listener.listening");
    assert_eq!((line["address"].as_str().unwrap(), &line["scheme"]), (&*daemon.address.to_string(), &"https".into()));
}
