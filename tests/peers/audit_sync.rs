//! The copy of the audit log on real servers: nginx with the WebDAV of the documented configuration, and an S3 server.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use ledge::audit::config::AuditSyncConfig;
use ledge::audit::key::AuditKey;
use ledge::audit::layout::{changed, log_folder};
use ledge::audit::local::LocalAuditLog;
use ledge::audit::log::AuditLog;
use ledge::audit::status::{AuditState, AuditSyncEvent, AuditSyncStatus, PublishedCheckpoint};
use ledge::audit::sync::{AuditSyncSettings, run};
use ledge::audit_event::AuditSink;
use ledge::egress::{Egress, EgressConfig};
use ledge::shutdown::Shutdown;
use tempfile::TempDir;

use crate::broker::free_port;
use crate::certificates::Authority;
use crate::daemon::{setup_root, write};
use crate::tools::path_of;

/// Timeout of every wait.
const LIMIT: Duration = Duration::from_mins(1);

/// A server of another maker; killed when dropped.
pub struct Server {
    pub port: u16,
    child: Child,
}

impl Server {
    pub fn start(command: &mut Command, port: u16) -> Self {
        let command = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut server = Self { port, child: command.spawn().unwrap() };
        let deadline = Instant::now() + LIMIT;
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            assert!(server.child.try_wait().unwrap().is_none(), "{command:?} ended");
            assert!(Instant::now() < deadline, "{command:?} does not listen");
            std::thread::sleep(Duration::from_millis(20));
        }
        server
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A box with a log.
struct LogBox {
    root: TempDir,
    key: AuditKey,
    log: AuditLog,
    state: AuditState,
    config: AuditSyncConfig,
}

impl LogBox {
    fn new(root: TempDir, config: &str) -> Self {
        let device = "box-1".parse().unwrap();
        let (key, _) =
            AuditKey::load_or_create(root.path(), &device, &ledge::identity::sealing::Sealer::none()).unwrap();
        let log = AuditLog::open(root.path(), &device, &key).unwrap().log;
        let config = toml::from_str(&format!("interval_s = 1\n{config}")).unwrap();
        Self { root, key, log, state: AuditState::default(), config }
    }

    fn grow(&mut self, count: u64) {
        for _ in 0..count {
            self.log.append(format!("record {}", self.log.size()).as_bytes()).unwrap();
        }
        self.log.commit().unwrap();
        let checkpoint = self.log.sign(&self.key).unwrap().clone();
        let generation = self.log.generation();
        self.state.publish(PublishedCheckpoint { generation, checkpoint, at_ms: 1, is_urgent: true });
    }

    /// Runs the copying until the platform has all, or something is wrong.
    fn sync(&self) -> AuditSyncStatus {
        // Drop the status of the previous run.
        self.state.update(|status| status.sync = None);
        let device = "box-1".parse().unwrap();
        let (folder, verifier_key) = (self.root.path().to_owned(), self.key.verifier_key().to_owned());
        let settings = AuditSyncSettings { config: self.config.clone(), folder, device, verifier_key };
        let egress = Egress::new(&EgressConfig::default(), AuditSink::channel().0);
        let shutdown = Shutdown::default();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let (state, size) = (self.state.clone(), self.log.size());
        runtime.block_on(async {
            shutdown.spawn(run(settings, egress, state.clone(), shutdown.clone()));
            let deadline = Instant::now() + LIMIT;
            loop {
                let sync = state.status().sync.unwrap_or_default();
                if sync.size == size && sync.waiting_since_ms.is_none() && sync.error.is_none() || sync.error.is_some()
                {
                    assert!(shutdown.drain(LIMIT).await);
                    return sync;
                }
                assert!(Instant::now() < deadline, "{sync:?}");
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        })
    }

    /// The files of a platform that has all of the log, below the folder of the box.
    fn files(&self) -> BTreeMap<String, Vec<u8>> {
        let generation = self.log.generation();
        let local = LocalAuditLog::open(&log_folder(self.root.path(), generation));
        let tile = |tile: ledge::audit::layout::TilePath| {
            (format!("{generation}/{}", tile.path()), local.tile(tile).unwrap().unwrap())
        };
        let mut files: BTreeMap<_, _> = changed(0, self.log.size()).into_iter().map(tile).collect();
        files.insert(format!("{generation}/checkpoint"), local.checkpoint().unwrap().unwrap());
        files
    }
}

/// All that a platform keeps must be the log, and tiles of heads before that were not whole then.
#[track_caller]
fn assert_copied(there: &BTreeMap<String, Vec<u8>>, expected: &BTreeMap<String, Vec<u8>>) {
    for (path, content) in expected {
        assert!(there.get(path) == Some(content), "{path}: {:?}", there.keys());
    }
    assert!(there.keys().all(|path| expected.contains_key(path) || path.contains(".p/")), "{:?}", there.keys());
}

/// nginx as `ledge-platform init` configures it, in a folder.
pub fn nginx(folder: &Path, authority: &Authority) -> Server {
    let server = authority.issue("127.0.0.1");
    write(&folder.join("tls/clients.pem"), authority.pem().as_bytes());
    write(&folder.join("tls/server.pem"), server.certificate.as_bytes());
    write(&folder.join("tls/server.key"), server.key.as_bytes());
    for served in ["boxes", "ledge-join"] {
        std::fs::create_dir_all(folder.join(served)).unwrap();
    }
    let templates = Path::new(env!("CARGO_MANIFEST_DIR")).join("packaging/platform/ledge_platform/site/templates");
    let template = |name: &str| std::fs::read_to_string(templates.join(name)).unwrap();
    let (port, at) = (free_port(), folder.display());
    let mut text = template("nginx.conf").replace("@SITE@", &template("nginx-site.conf"));
    for (in_template, here) in [
        ("@LISTEN@", format!("listen 127.0.0.1:{port} ssl;")),
        ("user @USER@;\n", String::new()),
        ("@DOMAIN@", "127.0.0.1".to_owned()),
        ("@CRL@", String::new()),
        // The tests upload in a second what boxes do in a day.
        ("rate=5r/s", "rate=1000r/s".to_owned()),
        ("@TLS@", format!("{at}/tls")),
        ("@SRV@/ledge-boxes", format!("{at}/boxes")),
        ("@SRV@", at.to_string()),
        ("@RUN@", at.to_string()),
        ("@ACCESS_LOG@", format!("{at}/access.log")),
        ("error_log stderr", format!("error_log {at}/error.log")),
    ] {
        assert!(text.contains(in_template), "{in_template}");
        text = text.replace(in_template, &here);
    }
    write(&folder.join("nginx.conf"), format!("master_process off;\n{text}").as_bytes());
    start_nginx(folder, port)
}

/// Starts the server of this folder again.
pub fn start_nginx(folder: &Path, port: u16) -> Server {
    let mut command = Command::new(path_of("nginx"));
    Server::start(command.arg("-c").arg(folder.join("nginx.conf")).arg("-e").arg(folder.join("error.log")), port)
}

/// An S3 server without a bucket.
pub fn moto() -> Server {
    let port = free_port();
    let program = setup_root().join("platform/bin/moto_server");
    assert!(program.is_file(), "there is no {}: `make test-peers` gets it", program.display());
    Server::start(Command::new(program).args(["-H", "127.0.0.1", "-p", &port.to_string()]), port)
}

pub fn files_below(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let (mut found, mut folders) = (BTreeMap::new(), vec![folder.to_owned()]);
    while let Some(next) = folders.pop() {
        for entry in std::fs::read_dir(&next).into_iter().flatten() {
            let path: PathBuf = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else {
                let name = path.strip_prefix(folder).unwrap().display().to_string();
                found.insert(name, std::fs::read(&path).unwrap());
            }
        }
    }
    found
}

/// A box with a certificate for `name`.
fn box_behind(authority: &Authority, name: &str, port: u16) -> LogBox {
    let root = tempfile::tempdir().unwrap();
    let identity = authority.issue(name);
    let file = |name: &str, content: &str| {
        let path = root.path().join(name);
        write(&path, content.as_bytes());
        path.display().to_string()
    };
    let (ca, certificate, key) =
        (file("ca.pem", authority.pem()), file("box.pem", &identity.certificate), file("box.key", &identity.key));
    let config = format!(
        "url = \"https://127.0.0.1:{port}/audit\"\n[tls]\nca_file = {ca:?}\ncertificate_file = {certificate:?}\nkey_file = {key:?}\n"
    );
    LogBox::new(root, &config)
}

#[test]
fn nginx_as_documented_has_the_log_of_a_box_byte_for_byte_and_lets_nothing_of_it_be_replaced() {
    let (folder, authority) = (tempfile::tempdir().unwrap(), Authority::new());
    let server = nginx(folder.path(), &authority);
    let mut of = box_behind(&authority, "box-1", server.port);
    let kept = folder.path().join("boxes/audit/box-1");
    for grown in [1, 255, 800] {
        of.grow(grown);
        assert_eq!(of.sync().error, None);
        assert_copied(&files_below(&kept), &of.files());
    }
    let log = || std::fs::read_to_string(folder.path().join("access.log")).unwrap();
    let puts = |answer: &str| log().lines().filter(|line| line.contains("\"PUT") && line.contains(answer)).count();
    // Nothing but the checkpoint was put twice.
    assert_eq!((puts("/tile/"), puts("\" 412 "), puts("\" 204 ")), (puts("\" 201 ") - 1, 0, 2));
    // A box that was killed before it put its checkpoint comes back: everything is there already.
    std::fs::remove_file(kept.join("1/checkpoint")).unwrap();
    std::fs::remove_file(of.root.path().join("sync.json")).unwrap();
    let before = files_below(&kept);
    assert_eq!(of.sync().error, None);
    assert_copied(&files_below(&kept), &of.files());
    assert_eq!(puts("\" 412 "), changed(0, 1056).len());
    assert_eq!(files_below(&kept).len(), before.len() + 1);
    // A platform with another history.
    let tile = kept.join("1/tile/entries/004.p/33");
    std::fs::create_dir_all(tile.parent().unwrap()).unwrap();
    write(&tile, b"another");
    of.grow(1);
    of.state.take_news();
    assert!(of.sync().error.unwrap().contains("another history"));
    assert!(of.state.take_news().contains(&AuditSyncEvent::Forked { generation: 1 }));
    assert_eq!(std::fs::read(tile).unwrap(), b"another");
}

#[test]
fn a_box_cannot_write_to_the_log_of_another() {
    let (folder, authority) = (tempfile::tempdir().unwrap(), Authority::new());
    let server = nginx(folder.path(), &authority);
    let mut of = box_behind(&authority, "box-2", server.port);
    of.grow(1);
    let error = of.sync().error.unwrap();
    assert!(error.contains("status 403") && error.contains("does the certificate name this box"), "{error}");
    assert_eq!(files_below(&folder.path().join("boxes/audit")), BTreeMap::new());
}

/// One request to the S3 server, which needs no key for the buckets that it makes itself.
fn s3(port: u16, request: &str) -> (u16, Vec<u8>) {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    write!(stream, "{request} HTTP/1.0\r\nHost: 127.0.0.1:{port}\r\nContent-Length: 0\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    let end = answer.windows(4).position(|bytes| bytes == b"\r\n\r\n").unwrap();
    let status = std::str::from_utf8(&answer[9..12]).unwrap().parse().unwrap();
    (status, answer.split_off(end + 4))
}

/// The objects in the bucket. It shows them only to their owner, so this needs a client with keys.
pub fn objects(port: u16) -> BTreeMap<String, Vec<u8>> {
    let script = "import base64, boto3, json, sys\n\
                  s3 = boto3.client('s3', endpoint_url=sys.argv[1], region_name='us-east-1', aws_access_key_id='test', aws_secret_access_key='test')\n\
                  pages = s3.get_paginator('list_objects_v2').paginate(Bucket='fleet')\n\
                  keys = [item['Key'] for page in pages for item in page.get('Contents', [])]\n\
                  body = lambda key: base64.b64encode(s3.get_object(Bucket='fleet', Key=key)['Body'].read()).decode()\n\
                  print(json.dumps({key: body(key) for key in keys}))\n";
    let mut python = Command::new(setup_root().join("platform/bin/python3"));
    let told = crate::tools::run(python.args(["-c", script]).arg(format!("http://127.0.0.1:{port}")));
    let encoded: BTreeMap<String, String> = serde_json::from_str(&told).unwrap();
    let decoded = |text: String| base64::Engine::decode(&base64::engine::general_purpose::STANDARD, text).unwrap();
    encoded.into_iter().map(|(key, text)| (key, decoded(text))).collect()
}

#[test]
fn a_bucket_has_the_log_of_a_box_byte_for_byte() {
    let server = moto();
    let port = server.port;
    let root = tempfile::tempdir().unwrap();
    let file = |name: &str| {
        let path = root.path().join(name);
        write(&path, b"test\n");
        path.display().to_string()
    };
    let (id, secret) = (file("id"), file("secret"));
    let config = format!(
        "url = \"s3://fleet/boxes\"\nendpoint = \"http://127.0.0.1:{port}\"\naccess_key_id_file = {id:?}\nsecret_access_key_file = {secret:?}\n"
    );
    let mut of = LogBox::new(root, &config);
    of.grow(1);
    let error = of.sync().error.unwrap();
    assert!(error.contains("there is no such bucket"), "{error}");
    assert_eq!(s3(server.port, "PUT /fleet").0, 200);
    let below = |objects: BTreeMap<String, Vec<u8>>| -> BTreeMap<String, Vec<u8>> {
        objects.into_iter().map(|(key, body)| (key.strip_prefix("boxes/box-1/").unwrap().to_owned(), body)).collect()
    };
    for grown in [1, 254, 600] {
        of.grow(grown);
        assert_eq!(of.sync().error, None);
        assert_copied(&below(objects(port)), &of.files());
    }
    // Nothing is known about earlier uploads: the server reports that each file exists, and it is the same.
    std::fs::remove_file(of.root.path().join("sync.json")).unwrap();
    let before = objects(port);
    assert_eq!(of.sync().error, None);
    assert_eq!(objects(port), before);
}
