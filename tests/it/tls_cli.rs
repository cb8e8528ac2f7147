//! The command line from another machine: over `https://`, with an API key.

use std::net::SocketAddr;
use std::process::Stdio;

use crate::access_matrix::key;
use crate::certificates::Authority;
use crate::core::add_sub_request;
use crate::daemon::{TestDaemon, TestRoot, write};
use crate::tls_kit::with_certificate;

/// The address of `https://`, and the result of a verb of the command line there: its success, and both outputs.
fn run(daemon: &TestDaemon, address: SocketAddr, verb: &[&str]) -> (bool, String) {
    let mut command = daemon.root.command(verb);
    let ran = command.args(["--url", &format!("https://{address}")]).stdin(Stdio::null()).output().unwrap();
    (ran.status.success(), String::from_utf8_lossy(&[ran.stdout, ran.stderr].concat()).into_owned())
}

#[test]
fn the_command_line_asks_over_https_with_a_key() {
    let authority = Authority::new();
    let root = with_certificate(TestRoot::new().models(&["add_sub"]), &authority).set("access.loopback=[]");
    let file = |name: &str, content: &str| {
        let path = root.folder.path().join(name);
        write(&path, content.as_bytes());
        path.display().to_string()
    };
    let (ca, stranger) = (file("ca.pem", authority.pem()), file("stranger.pem", Authority::new().pem()));
    let right = file("right.key", &(key(&root, &["one", "--role", "viewer", "--role", "infer"]) + "\n"));
    let revoked = key(&root, &["two", "--role", "admin"]);
    assert!(root.command(&["keys", "revoke", "two"]).output().unwrap().status.success());
    let (wrong, none) = (file("wrong.key", &revoked), file("none.key", "password"));
    let input = file("input.json", &add_sub_request(1, 1).to_string());
    let daemon = root.start();
    let run = |verb: &[&str]| run(&daemon, daemon.address, verb);
    let verbs: [&[&str]; 3] =
        [&["top", "--once", "--json"], &["features", "list"], &["infer", "add_sub", &input, "--format", "jsonl"]];
    for verb in verbs {
        let (success, told) = run(&[verb, &["--ca-file", &ca, "--key-file", &right]].concat());
        assert!(success, "{verb:?}: {told}");
        for (credential, reason) in [
            (&["--ca-file", &ca, "--key-file", &wrong][..], "the API key"),
            (&["--ca-file", &ca, "--key-file", &none], "none.key contains no API key"),
            (&["--ca-file", &ca], "--key-file FILE"),
            (&["--ca-file", &stranger, "--key-file", &right], "is not signed by a CA in"),
        ] {
            let (success, told) = run(&[verb, credential].concat());
            assert!(!success && told.contains(reason), "{verb:?} {credential:?}: {told}");
        }
    }
    let mut by_variable = daemon.root.command(&["top", "--once", "--ca-file", &ca]);
    let url = format!("https://{}", daemon.address);
    by_variable.args(["--url", &url]).env("LEDGE_KEY_FILE", &right);
    assert!(by_variable.stdin(Stdio::null()).output().unwrap().status.success());
}
