//! The live copies of the audit log: a real rsyslog with client certificates, and a collector that reads by the
//! official schema of OpenTelemetry.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

use crate::broker::free_port;
use crate::certificates::Authority;
use crate::daemon::{TestDaemon, TestRoot, setup_root, write};
use crate::message::add_sub;
use crate::tools::path_of;

const LIMIT: Duration = Duration::from_mins(1);

/// A running rsyslog, which accepts messages over TLS only from the box named `box-7`.
struct Rsyslog {
    folder: TempDir,
    port: u16,
    child: Child,
}

impl Rsyslog {
    fn start(authority: &Authority) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (port, at) = (free_port(), folder.path().display());
        let server = authority.issue("127.0.0.1");
        write(&folder.path().join("ca.pem"), authority.pem().as_bytes());
        write(&folder.path().join("server.pem"), server.certificate.as_bytes());
        write(&folder.path().join("server.key"), server.key.as_bytes());
        std::fs::create_dir(folder.path().join("work")).unwrap();
        // Its own template for RFC 5424, so that the file has the message as rsyslog parsed it.
        let text = format!(
            "global(workDirectory=\"{at}/work\" maxMessageSize=\"64k\" defaultNetstreamDriver=\"gtls\"\n\
             defaultNetstreamDriverCAFile=\"{at}/ca.pem\" defaultNetstreamDriverCertFile=\"{at}/server.pem\"\n\
             defaultNetstreamDriverKeyFile=\"{at}/server.key\")\n\
             module(load=\"imtcp\" streamDriver.name=\"gtls\" streamDriver.mode=\"1\" streamDriver.authMode=\"x509/name\"\n\
             permittedPeer=[\"box-7\"])\n\
             input(type=\"imtcp\" address=\"127.0.0.1\" port=\"{port}\")\n\
             action(type=\"omfile\" file=\"{at}/out.log\" template=\"RSYSLOG_SyslogProtocol23Format\")\n"
        );
        write(&folder.path().join("rsyslog.conf"), text.as_bytes());
        let child = spawn(folder.path());
        let mut server = Self { folder, port, child };
        server.wait();
        server
    }

    fn stop(&mut self) {
        let _ = self.child.kill();
        self.child.wait().unwrap();
    }

    fn start_again(&mut self) {
        let _ = std::fs::remove_file(self.folder.path().join("pid"));
        self.child = spawn(self.folder.path());
        self.wait();
    }

    fn wait(&mut self) {
        until("rsyslog listens", || {
            assert!(self.child.try_wait().unwrap().is_none(), "rsyslog ended");
            std::net::TcpStream::connect(("127.0.0.1", self.port)).is_ok()
        });
    }

    /// The messages of Ledge that it has written.
    fn messages(&self) -> Vec<Message> {
        let text = std::fs::read_to_string(self.folder.path().join("out.log")).unwrap_or_default();
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        whole.lines().filter(|line| line.contains(" ledge ")).map(Message::parse).collect()
    }
}

fn spawn(folder: &Path) -> Child {
    let mut command = Command::new(path_of("rsyslogd"));
    command.arg("-n").arg("-f").arg(folder.join("rsyslog.conf")).arg("-i").arg(folder.join("pid"));
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

impl Drop for Rsyslog {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A message of RFC 5424, read strictly.
#[derive(Debug)]
struct Message {
    priority: u8,
    host: String,
    process: u32,
    id: String,
    parameters: Vec<(String, String)>,
    record: Value,
}

impl Message {
    #[track_caller]
    fn parse(line: &str) -> Self {
        let (priority, rest) = line.strip_prefix('<').and_then(|rest| rest.split_once(">1 ")).unwrap();
        let mut words = rest.splitn(6, ' ');
        let mut word = || words.next().unwrap_or_else(|| panic!("{line}"));
        let (time, host, application, process, id, rest) = (word(), word(), word(), word(), word(), word());
        assert!(time.len() >= 20 && time.as_bytes()[10] == b'T', "{line}");
        assert_eq!(application, "ledge", "{line}");
        let mut rest = rest.strip_prefix("[ledge@32473").unwrap_or_else(|| panic!("{line}"));
        let mut parameters = Vec::new();
        while let Some(parameter) = rest.strip_prefix(' ') {
            let (name, quoted) = parameter.split_once("=\"").unwrap();
            let mut value = String::new();
            let mut characters = quoted.char_indices();
            let end = loop {
                match characters.next().unwrap() {
                    (at, '"') => break at,
                    (_, '\\') => value.push(characters.next().unwrap().1),
                    (_, character) => value.push(character),
                }
            };
            parameters.push((name.to_owned(), value));
            rest = &quoted[end + 1..];
        }
        // rsyslog keeps the space before the message as a part of it, or does not.
        let text = rest.strip_prefix(']').unwrap().trim_start_matches(' ');
        Self {
            priority: priority.parse().unwrap(),
            host: host.to_owned(),
            process: process.parse().unwrap(),
            id: id.to_owned(),
            parameters,
            record: serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {line}")),
        }
    }

    fn parameter(&self, name: &str) -> &str {
        &self.parameters.iter().find(|(found, _)| found == name).unwrap().1
    }

    fn seq(&self) -> u64 {
        self.parameter("seq").parse().unwrap()
    }
}

#[track_caller]
fn until(what: &str, mut reached: impl FnMut() -> bool) {
    let deadline = Instant::now() + LIMIT;
    while !reached() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The status of the only copy.
fn copy(daemon: &TestDaemon) -> Value {
    daemon.client().get("/audit/status").json()["copies"][0].clone()
}

fn infer(daemon: &TestDaemon, times: u32) {
    let (mut client, request) = (daemon.client(), add_sub("1", 2.0));
    for _ in 0..times {
        assert_eq!(client.post_json("/v2/models/add_sub/infer", &request).status, 200);
    }
}

fn root() -> TestRoot {
    TestRoot::new().models(&["add_sub"]).set("device.id=\"box-7\"").set("audit.inference=\"calls\"")
}

fn with_syslog(rsyslog: &Rsyslog, authority: &Authority, client: &str) -> TestRoot {
    let root = root();
    let identity = authority.issue(client);
    let file = |name: &str, content: &str| {
        write(&root.folder.path().join(name), content.as_bytes());
    };
    file("ca.pem", authority.pem());
    file("box.pem", &identity.certificate);
    file("box.key", &identity.key);
    root.set(&format!("audit.syslog.to=\"127.0.0.1:{}\"", rsyslog.port))
        .set("audit.syslog.tls.ca_file=\"ca.pem\"")
        .set("audit.syslog.tls.certificate_file=\"box.pem\"")
        .set("audit.syslog.tls.key_file=\"box.key\"")
}

#[test]
fn rsyslog_takes_the_records_and_a_loss_is_a_hole_that_is_counted() {
    let authority = Authority::new();
    let mut rsyslog = Rsyslog::start(&authority);
    let daemon = with_syslog(&rsyslog, &authority, "box-7").start();
    until("the first call", || {
        infer(&daemon, 1);
        rsyslog.messages().iter().any(|message| message.id == "inference")
    });
    let messages = rsyslog.messages();
    for (seq, message) in messages.iter().enumerate() {
        // From the very first record on, each in its place.
        assert_eq!(message.seq(), seq as u64);
        assert!(matches!(message.priority, 108 | 110), "{message:?}");
        assert_eq!((message.host.as_str(), message.process), ("box-7", daemon.pid()));
        assert_eq!(message.parameter("log"), "ledge.audit/box-7/1");
        assert_eq!(message.parameter("lossy"), "true");
        assert_eq!(message.parameter("leaf").len(), 44);
        assert_eq!(message.record["seq"], seq as u64);
    }
    assert!(messages.iter().any(|message| message.id == "started"));

    rsyslog.stop();
    until("an error", || !copy(&daemon)["error"].is_null());
    infer(&daemon, 1300);
    until("a loss", || copy(&daemon)["lost"].as_u64().unwrap() >= 300);
    rsyslog.start_again();
    until("it goes on", || copy(&daemon)["error"].is_null());
    infer(&daemon, 1);
    let size = daemon.client().get("/audit/status").json()["size"].as_u64().unwrap();
    until("the last", || rsyslog.messages().last().is_some_and(|message| message.seq() + 1 >= size));
    let seqs: Vec<_> = rsyslog.messages().iter().map(Message::seq).collect();
    let holes: u64 = seqs.windows(2).map(|pair| pair[1] - pair[0] - 1).sum();
    // Messages that rsyslog had received and not yet written when it was stopped are not in any count.
    let lost = copy(&daemon)["lost"].as_u64().unwrap();
    assert!(seqs.is_sorted() && lost > 0 && (lost..lost + 64).contains(&holes), "{lost} lost, {holes} in holes");
}

#[test]
fn a_box_that_rsyslog_does_not_know_is_told_so_and_loses_nothing_silently() {
    let authority = Authority::new();
    let rsyslog = Rsyslog::start(&authority);
    let daemon = with_syslog(&rsyslog, &authority, "box-8").start();
    until("an error", || !copy(&daemon)["error"].is_null());
    assert_eq!(copy(&daemon)["sent"], 0);
    assert!(rsyslog.messages().is_empty());
}

/// The collector, and its output.
struct Collector {
    port: u16,
    child: Child,
    seen: Receiver<Value>,
}

impl Collector {
    fn start(folder: &Path, answers: &str) -> Self {
        let python = otlp_python();
        write(&folder.join("answers"), answers.as_bytes());
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/peers/clients/otlp_collector.py");
        let mut child = Command::new(python)
            .arg(script)
            .arg(folder)
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let port = lines.next().unwrap().unwrap().parse().unwrap();
        let (sender, seen) = channel();
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                let _ = sender.send(serde_json::from_str(&line).unwrap());
            }
        });
        Self { port, child, seen }
    }

    #[track_caller]
    fn next(&self) -> Value {
        self.seen.recv_timeout(LIMIT).expect("a request that has the form of OTLP")
    }
}

impl Drop for Collector {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn otlp_python() -> PathBuf {
    let python = setup_root().join("peers/otlp/bin/python3");
    assert!(python.exists(), "{} is missing: `make setup-otlp` gets it", python.display());
    python
}

#[test]
fn a_collector_gets_records_by_the_official_schema_and_a_busy_one_gets_them_again() {
    let folder = tempfile::tempdir().unwrap();
    let collector = Collector::start(folder.path(), "busy 2\npart 1");
    let root = root();
    write(&root.folder.path().join("token"), b"secret-7\n");
    let daemon = root
        .set(&format!("audit.otlp.url=\"http://127.0.0.1:{}/v1/logs\"", collector.port))
        .set("audit.otlp.token_file=\"token\"")
        .start();
    let refused = collector.next();
    let again_from = Instant::now();
    assert_eq!((&refused["path"], &refused["type"]), (&"/v1/logs".into(), &"application/json".into()));
    assert_eq!(refused["token"], "Bearer secret-7");
    let taken = collector.next();
    // Retry-After is honoured.
    assert!(again_from.elapsed() >= Duration::from_millis(1900), "{:?}", again_from.elapsed());
    let records = taken["records"].as_array().unwrap();
    let before = refused["records"].as_array().unwrap();
    assert_eq!(records[..before.len()], before[..]);
    for (seq, record) in records.iter().enumerate() {
        let attributes = &record["attributes"];
        assert_eq!(attributes["seq"], seq as u64);
        assert_eq!((&attributes["log"], &attributes["lossy"]), (&"ledge.audit/box-7/1".into(), &true.into()));
        assert_eq!(attributes["leaf"].as_str().unwrap().len(), 44);
        assert_eq!(record["resource"]["service.name"], "ledge");
        assert_eq!(record["resource"]["service.instance.id"], "box-7");
        assert_eq!(record["scope"], "ledge.audit");
        assert!(matches!(record["severity"].as_u64(), Some(9 | 13)) && record["time"].as_u64().unwrap() > 0);
        let line: Value = serde_json::from_str(record["body"].as_str().unwrap()).unwrap();
        assert_eq!((&line["seq"], &line["event"]["action"]), (&attributes["seq"], &attributes["action"]));
    }
    until("the refused one is counted", || copy(&daemon)["lost"] == 1);
    infer(&daemon, 250);
    let mut next = records.len() as u64;
    let mut calls = 0;
    while calls < 250 {
        let batch = collector.next();
        let records = batch["records"].as_array().unwrap();
        assert!(records.len() <= 100);
        for record in records {
            assert_eq!(record["attributes"]["seq"], next);
            next += 1;
            calls += u32::from(record["attributes"]["action"] == "inference");
        }
    }
    until("all are counted", || copy(&daemon)["sent"].as_u64().unwrap() + 1 >= next);
    assert_eq!((&copy(&daemon)["lost"], &copy(&daemon)["error"]), (&1.into(), &Value::Null));
}
