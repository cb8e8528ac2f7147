//! Schemathesis makes calls of the published description, good and bad ones, and judges the answers by it: no answer of
//! 500, no status, content type, header or form that is not described, no route that is open to who shows no key.

use std::path::Path;
use std::process::Command;

use crate::daemon::{TestDaemon, TestRoot, setup_root};
use crate::tools;

const VIEWS: &str = r#"
[[entity]]
name = "driver"
join_key = "driver_id"
value_type = "Int64"

[[feature_view]]
name = "driver_stats"
entities = ["driver"]
ttl = "24h"
source = { name = "driver_push" }
schema = [{ name = "trips", dtype = "Int64" }, { name = "city", dtype = "String" }]

[[feature_view]]
name = "pairs"
entities = ["driver"]
source = { name = "pairs_push", timestamp_field = "happened" }
schema = [{ name = "score", dtype = "Float64" }]

[[feature_service]]
name = "driver_activity"
features = ["driver_stats:trips", "pairs:score"]
"#;

/// The most memory in kB that the daemon may gain during the run.
const GROWTH_KB: u64 = 64 << 10;

/// The checks that are made. Left out are those of which requests are well-formed: the box takes more than its
/// description says, as Triton and Feast do.
const CHECKS: &str = "not_a_server_error,status_code_conformance,content_type_conformance,response_headers_conformance,\
                      response_schema_conformance,unsupported_method,allow_header_conformance,ignored_auth";

/// A box that allows nothing without a key, and a key for everything.
fn start() -> (TestDaemon, String) {
    let models = ["add_sub", "identity_string", "dynamic_sum", "efficientnet_lite0"];
    let root = TestRoot::closed().models(&models).views(VIEWS).set("access.loopback=[]").set("log.level=\"info\"");
    let key = tools::run(&mut root.command(&["keys", "create", "schemathesis", "--role", "admin"]));
    (root.start(), key.trim().to_owned())
}

fn rss_kb(daemon: &TestDaemon) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", daemon.pid())).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

fn run_for(seconds: u64) {
    let (daemon, key) = start();
    let program = setup_root().join("peers/schemathesis/bin/schemathesis");
    assert!(program.is_file(), "{} is missing: `make setup-schemathesis` gets it", program.display());
    let config = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/peers/clients/schemathesis.toml");
    let before = rss_kb(&daemon);
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new(program);
    command.current_dir(folder.path()).env("PYTHONDONTWRITEBYTECODE", "1");
    command.arg("--config-file").arg(config).arg("run").arg(format!("http://{}/openapi.json", daemon.address));
    command.args(["--max-time", &seconds.to_string(), "--checks", CHECKS]);
    command.args(["--header", &format!("Authorization: Bearer {key}"), "--request-timeout", "30"]);
    command.args(["--continue-on-failure", "--no-color", "--warnings", "off"]);
    command.args(["--suppress-health-check", "all", "--generation-database", "none"]);
    let told = tools::run(&mut command);
    let after = rss_kb(&daemon);
    println!("{told}\n{before} kB before, {after} kB after");
    assert!(told.contains("No issues found"), "{told}");
    assert!(after < before + GROWTH_KB, "{before} kB before, {after} kB after");
    assert!(!daemon.log().contains("panic"), "{}", daemon.log());
    let (mut client, bearer) = (daemon.client(), format!("Bearer {key}"));
    let answer = client.request("GET", "/v2/models/add_sub", &[("authorization", &bearer)], b"");
    assert_eq!(answer.status, 200, "{answer:?}");
}

#[test]
fn what_schemathesis_asks_is_answered_as_described() {
    run_for(40);
}

#[test]
#[ignore = "ten minutes, or HOSTILE_MINUTES: `make hostile`"]
fn what_schemathesis_asks_for_minutes_is_answered_as_described() {
    let minutes: u64 = std::env::var("HOSTILE_MINUTES").map_or(10, |text| text.parse().unwrap());
    run_for(minutes * 60);
}
