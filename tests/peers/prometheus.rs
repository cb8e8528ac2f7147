//! `Prometheus`: the real server, which scrapes a box and evaluates the rules of `packaging/monitoring/`.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

use crate::broker::free_port;
use crate::client::Client;
use crate::daemon::{TestDaemon, write};
use crate::tools::path_of;

/// A server that does not answer by then never will, nor will a rule that has not fired.
const LIMIT: Duration = Duration::from_mins(1);

/// The time between two looks.
const GLANCE: Duration = Duration::from_millis(100);

/// The rules that are shipped.
pub fn rules() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("packaging/monitoring/ledge.rules.yml")
}

/// The same with hold times and windows of seconds in place of minutes and hours. Scrapes come each second.
pub fn in_seconds(rules: &str) -> String {
    let mut lines = Vec::new();
    for line in rules.lines() {
        let indent = line.len() - line.trim_start().len();
        lines.push(match line.trim_start().strip_prefix("for: ") {
            Some(_) => format!("{}for: 2s", " ".repeat(indent)),
            None => line.replace("[5m]", "[6s]").replace("[2m]", "[6s]").replace("offset 1d", "offset 1m"),
        });
    }
    lines.join("\n") + "\n"
}

/// A running server; killed when dropped.
pub struct Prometheus {
    port: u16,
    child: Child,
    _folder: TempDir,
}

impl Prometheus {
    /// Scrapes a box each second, as the job `ledge`.
    pub fn start(daemon: &TestDaemon, rules: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let port = free_port();
        write(&folder.path().join("rules.yml"), rules.as_bytes());
        let config = format!(
            "global:\n  scrape_interval: 1s\n  evaluation_interval: 1s\nrule_files:\n  - rules.yml\nscrape_configs:\n  \
             - job_name: ledge\n    static_configs:\n      - targets: [\"{}\"]\n",
            daemon.address
        );
        write(&folder.path().join("prometheus.yml"), config.as_bytes());
        let mut command = Command::new(path_of("prometheus"));
        command
            .arg(format!("--config.file={}", folder.path().join("prometheus.yml").display()))
            .arg(format!("--storage.tsdb.path={}", folder.path().join("data").display()))
            .arg(format!("--web.listen-address=127.0.0.1:{port}"))
            .arg("--log.level=error");
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let server = Self { port, child, _folder: folder };
        let deadline = Instant::now() + LIMIT;
        while !server.is_ready() {
            assert!(Instant::now() < deadline, "prometheus does not start");
            std::thread::sleep(GLANCE);
        }
        server
    }

    fn is_ready(&self) -> bool {
        let client = Client::try_tcp(([127, 0, 0, 1], self.port).into());
        client.is_ok_and(|mut client| client.try_get("/-/ready").is_ok_and(|answer| answer.status == 200))
    }

    fn get(&self, path: &str) -> Value {
        let answer = Client::tcp(([127, 0, 0, 1], self.port).into()).get(path);
        assert_eq!(answer.status, 200, "{answer:?}");
        answer.json()["data"].clone()
    }

    /// The rules that are firing now.
    pub fn firing(&self) -> BTreeSet<String> {
        let data = self.get("/api/v1/alerts");
        let alerts = data["alerts"].as_array().unwrap().iter().filter(|alert| alert["state"] == "firing");
        alerts.map(|alert| alert["labels"]["alertname"].as_str().unwrap().to_owned()).collect()
    }

    /// The rules that were firing at any time so far.
    pub fn ever_fired(&self) -> BTreeSet<String> {
        let query = "/api/v1/query?query=count%20by%20(alertname)%20(count_over_time(ALERTS%7Balertstate%3D%22firing%22%7D%5B2h%5D))";
        let data = self.get(query);
        let results = data["result"].as_array().unwrap().iter();
        results.map(|series| series["metric"]["alertname"].as_str().unwrap().to_owned()).collect()
    }

    /// The targets with a successful last scrape.
    pub fn targets_up(&self) -> Vec<Value> {
        let data = self.get("/api/v1/targets");
        data["activeTargets"].as_array().unwrap().iter().filter(|target| target["health"] == "up").cloned().collect()
    }

    /// Waits until a rule fires, or does not.
    #[track_caller]
    pub fn wait_until(&self, rule: &str, fires: bool) {
        let deadline = Instant::now() + LIMIT;
        while self.firing().contains(rule) != fires {
            assert!(Instant::now() < deadline, "in vain waited for {rule} to be firing: {fires}; {:?}", self.firing());
            std::thread::sleep(GLANCE);
        }
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
