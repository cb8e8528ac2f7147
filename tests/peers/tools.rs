//! Programs of other makers, run as commands: mosquitto's clients and Python scripts.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use crate::broker::Broker;
use crate::daemon::setup_root;

/// Where Debian puts servers, which are not on every user's PATH.
const SERVERS: &str = "/usr/sbin";

/// A program of a package that `make test-peers` installs.
pub fn path_of(program: &str) -> PathBuf {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain([PathBuf::from(SERVERS)])
        .map(|folder| folder.join(program))
        .find(|path| path.is_file())
        .unwrap_or_else(|| panic!("{program} is not installed: `make test-peers` installs it, or says how"))
}

/// Runs a command, which must succeed, and returns its output.
#[track_caller]
pub fn run(command: &mut Command) -> String {
    let output = command.stdin(Stdio::null()).output().unwrap();
    assert_success(command, &output);
    String::from_utf8(output.stdout).unwrap()
}

/// The same for a command that reads `input`.
#[track_caller]
pub fn run_with(command: &mut Command, input: &[u8]) -> String {
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(input).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_success(command, &output);
    String::from_utf8(output.stdout).unwrap()
}

#[track_caller]
fn assert_success(command: &Command, output: &Output) {
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{command:?}: {}\n{out}{err}", output.status);
}

/// One of mosquitto's clients, `mosquitto_pub`, `mosquitto_sub` or `mosquitto_rr`, towards a broker.
pub fn mosquitto(program: &str, broker: &Broker) -> Command {
    let mut command = Command::new(path_of(program));
    command.args(["-h", "127.0.0.1", "-p", &broker.port.to_string()]);
    command
}

/// Python, which `PYTHON` names.
pub fn interpreter() -> Command {
    Command::new(std::env::var_os("PYTHON").unwrap_or_else(|| "python3".into()))
}

/// A script of `tests/peers/clients` towards a broker; it says `ok` in the end.
#[track_caller]
pub fn python(script: &str, broker: &Broker, arguments: &[&str]) {
    let packages = setup_root().join("tools/python-test");
    assert!(packages.join("paho").is_dir(), "{} has no paho-mqtt: `make setup-test` gets it", packages.display());
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/peers/clients").join(script);
    let mut command = interpreter();
    command.arg(script).arg(broker.port.to_string()).args(arguments);
    let out = run(command.env("PYTHONPATH", packages).env("PYTHONDONTWRITEBYTECODE", "1"));
    assert_eq!(out.trim(), "ok");
}
