//! Starts a daemon on a free port for the time of a measurement.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use anyhow::{Context, bail};
use ledge::cli::GlobalArgs;
use ledge_audit::config::AuditConfig;
use serde_json::Value;

/// The longest silence of the daemon's log while it loads one model or stops. After that it counts as hanging.
const LOG_TIMEOUT: Duration = Duration::from_mins(5);

/// A running daemon; stopped when dropped.
#[derive(Debug)]
pub struct ChildDaemon {
    child: Child,
    pub url: String,
    /// The lines of its log. The channel closes when the daemon ends.
    lines: mpsc::Receiver<String>,
}

impl ChildDaemon {
    /// Starts this program as `ledge serve`, with the settings of this command line on the given repository, state
    /// folder and cache, and waits until it is ready.
    pub fn start(globals: &GlobalArgs, repository: &Path, state: &Path, cache: &Path) -> anyhow::Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("serve");
        for (flag, path) in [("--root", &globals.root), ("--config", &globals.config)] {
            if let Some(path) = path {
                command.arg(flag).arg(path);
            }
        }
        let text = |path: &Path| toml::Value::String(path.display().to_string());
        let own = [
            "http.listen=[\"127.0.0.1:0\"]".to_owned(),
            // Only the parent process calls this daemon.
            "access.loopback=[\"viewer\", \"infer\"]".to_owned(),
            "log.format=\"json\"".to_owned(),
            "log.level=\"info\"".to_owned(),
            format!("repository.path={}", text(repository)),
            "repository.packaged=\"\"".to_owned(),
            // The broker and the platform know the daemon that has this box's names, and no second one.
            "mqtt.broker=\"\"".to_owned(),
            // Pictures of cameras would be measured as well.
            "camera=[]".to_owned(),
            "mqtt.bindings=[]".to_owned(),
            "home_assistant.enable=false".to_owned(),
            "updates.repository=\"\"".to_owned(),
            format!("state.path={}", text(state)),
            // Its audit log and its history are discarded.
            "history.enabled=false".to_owned(),
            format!("audit.path={}", text(&state.join("audit"))),
            format!("runtimes.cache={}", text(cache)),
            // In-process measurements have no quota, either.
            "quota.max_rate_per_principal=0".to_owned(),
            "quota.max_concurrent_per_principal=0".to_owned(),
        ];
        for setting in globals.set.iter().chain(&own).chain(&AuditConfig::settings_without_copies()) {
            command.arg("--set").arg(setting);
        }
        command.env_remove("NOTIFY_SOCKET").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().context("the server cannot be started")?;
        let (sender, lines) = mpsc::channel();
        let stderr = child.stderr.take();
        std::thread::spawn(move || {
            for line in stderr.into_iter().flat_map(|pipe| BufReader::new(pipe).lines().map_while(Result::ok)) {
                // Lines are read even without a receiver, because a full pipe would block the daemon.
                let _ = sender.send(line);
            }
        });
        let mut daemon = Self { child, url: String::new(), lines };
        daemon.wait_until_ready()?;
        Ok(daemon)
    }

    fn wait_until_ready(&mut self) -> anyhow::Result<()> {
        let mut log = Vec::new();
        while let Ok(line) = self.lines.recv_timeout(LOG_TIMEOUT) {
            let event: Value = serde_json::from_str(&line).unwrap_or_default();
            let field = |name: &str| event.get(name).and_then(Value::as_str);
            match field("event_name") {
                Some("listener.listening") => self.url = format!("http://{}", field("address").unwrap_or_default()),
                Some("daemon.ready") => return Ok(()),
                _ => log.push(line),
            }
        }
        log.drain(..log.len().saturating_sub(5));
        bail!("the server did not become ready:\n  {}", log.join("\n  "))
    }

    /// The process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for ChildDaemon {
    fn drop(&mut self) {
        let _ =
            rustix::process::kill_process(rustix::process::Pid::from_child(&self.child), rustix::process::Signal::TERM);
        // The log ends with the daemon.
        while self.lines.recv_timeout(LOG_TIMEOUT).is_ok() {}
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
