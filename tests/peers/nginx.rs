//! `Nginx`: the real web server over a folder, on a free loopback port, with TLS and client certificates.

use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::broker::free_port;
use crate::certificates::Authority;
use crate::daemon::write;
use crate::tools::path_of;

/// A server that does not listen by then never will.
const START: Duration = Duration::from_secs(20);

/// A request that was answered.
#[derive(Debug)]
pub struct Answered {
    pub status: u16,
    pub bytes: u64,
    pub path: String,
    /// The offset that the request began at.
    pub from: u64,
}

/// A running server; killed when dropped.
pub struct Nginx {
    pub port: u16,
    folder: TempDir,
    root: PathBuf,
    lines: String,
    child: Child,
}

impl Nginx {
    /// Serves `root` to clients with a certificate of `authority`. `lines` go into its `location` block.
    pub fn start(root: &Path, authority: &Authority, lines: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let server = authority.issue("127.0.0.1");
        write(&folder.path().join("ca.pem"), authority.pem().as_bytes());
        write(&folder.path().join("server.pem"), server.certificate.as_bytes());
        write(&folder.path().join("server.key"), server.key.as_bytes());
        let port = free_port();
        let child = spawn(folder.path(), root, port, lines);
        let mut server = Self { port, folder, root: root.to_owned(), lines: lines.to_owned(), child };
        server.wait();
        server
    }

    /// As in the setting `updates.repository`.
    pub fn url(&self) -> String {
        format!("https://127.0.0.1:{}/", self.port)
    }

    /// Ends it: the network is gone.
    pub fn stop(&mut self) {
        let _ = self.child.kill();
        self.child.wait().unwrap();
    }

    /// Starts it again on the same port, with other lines if they are given.
    pub fn start_again(&mut self, lines: Option<&str>) {
        self.stop();
        if let Some(lines) = lines {
            lines.clone_into(&mut self.lines);
        }
        self.child = spawn(self.folder.path(), &self.root, self.port, &self.lines);
        self.wait();
    }

    /// The requests that it has answered so far: a line each, with the status, the bytes sent and the path.
    pub fn requests(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("access.log")).unwrap_or_default()
    }

    /// The requests for files of a version of a model.
    pub fn transfers(&self, model: &str, version: u64) -> Vec<Answered> {
        let wanted = format!("/targets/models/{model}/{version}/");
        self.requests().lines().map(Answered::read).filter(|answered| answered.path.starts_with(&wanted)).collect()
    }

    fn wait(&mut self) {
        let deadline = Instant::now() + START;
        while TcpStream::connect(("127.0.0.1", self.port)).is_err() {
            let log = || std::fs::read_to_string(self.folder.path().join("error.log")).unwrap_or_default();
            assert!(self.child.try_wait().unwrap().is_none(), "nginx ended:\n{}", log());
            assert!(Instant::now() < deadline, "nginx does not listen:\n{}", log());
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Answered {
    fn read(line: &str) -> Self {
        let words: Vec<&str> = line.split(' ').collect();
        let from = words[3].strip_prefix("bytes=").and_then(|range| range.strip_suffix('-'));
        Self {
            status: words[0].parse().unwrap(),
            bytes: words[1].parse().unwrap(),
            path: words[2].to_owned(),
            from: from.map_or(0, |from| from.parse().unwrap()),
        }
    }
}

fn spawn(folder: &Path, root: &Path, port: u16, lines: &str) -> Child {
    let at = folder.display();
    let text = format!(
        "daemon off;\nmaster_process off;\npid {at}/pid;\nerror_log {at}/error.log;\nevents {{}}\nhttp {{\n\
         log_format short '$status $body_bytes_sent $uri $http_range';\naccess_log {at}/access.log short;\n\
         client_body_temp_path {at};\nproxy_temp_path {at};\nfastcgi_temp_path {at};\nuwsgi_temp_path {at};\nscgi_temp_path {at};\n\
         server {{\nlisten 127.0.0.1:{port} ssl;\nssl_certificate {at}/server.pem;\nssl_certificate_key {at}/server.key;\n\
         ssl_client_certificate {at}/ca.pem;\nssl_verify_client on;\nroot {};\nlocation / {{\n{lines}\n}}\n}}\n}}\n",
        root.display()
    );
    write(&folder.join("nginx.conf"), text.as_bytes());
    let mut command = Command::new(path_of("nginx"));
    command.arg("-c").arg(folder.join("nginx.conf")).arg("-e").arg(folder.join("error.log"));
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

impl Drop for Nginx {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
