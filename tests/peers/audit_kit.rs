//! `Kit`: the verbs of the platform's kit about audit logs.

use std::path::Path;
use std::process::Command;

use tempfile::TempDir;

use crate::daemon::setup_root;
use crate::tools::run;

/// The kit, with its state about boxes.
pub struct Kit {
    state: TempDir,
}

impl Kit {
    /// One that knows no box.
    pub fn new() -> Self {
        Self { state: tempfile::tempdir().unwrap() }
    }

    /// Pins the key of a box.
    #[track_caller]
    pub fn enroll(&self, device: &str, key: &str) {
        run(self.command("enroll").args([device, key]));
    }

    /// Verifies the logs: returns the exit status, and the output.
    pub fn verify<'a>(&self, arguments: impl IntoIterator<Item = &'a str>) -> (i32, String) {
        let output = self.command("verify").args(arguments).output().unwrap();
        let told = [output.stdout, output.stderr].concat();
        (output.status.code().unwrap(), String::from_utf8(told).unwrap())
    }

    fn command(&self, verb: &str) -> Command {
        let mut command = Command::new(setup_root().join("platform/bin/python"));
        let package = Path::new(env!("CARGO_MANIFEST_DIR")).join("packaging/platform");
        command.env("PYTHONPATH", package).env("PYTHONDONTWRITEBYTECODE", "1");
        for (name, value) in [("ACCESS_KEY_ID", "test"), ("SECRET_ACCESS_KEY", "test"), ("DEFAULT_REGION", "us-east-1")]
        {
            command.env(format!("AWS_{name}"), value);
        }
        command.args(["-m", "ledge_platform", "audit", verb, "--state"]).arg(self.state.path().join("audit"));
        command
    }
}
