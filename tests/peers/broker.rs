//! `Broker`: a real mosquitto, or a NATS server, on a free loopback port over a temporary folder.

use std::fmt::Write as _;
use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::boxes::wait_until;
use crate::daemon::{send_signal, write};
use crate::tools::{path_of, run};

/// A broker that does not listen by then never will.
const START: Duration = Duration::from_secs(20);

/// Attempts to start: another program may take the port between its release and the broker's start.
const ATTEMPTS: usize = 5;

/// The administrator of a broker with [`Setup::dynamic_security`].
const ADMIN: (&str, &str) = ("admin", "the-administrator");

/// The setup of a broker, before it runs.
pub struct Setup {
    folder: TempDir,
    lines: String,
    persistence: bool,
    dynamic_security: bool,
}

impl Setup {
    /// A mosquitto to which everybody may connect, and that keeps nothing when it stops.
    pub fn new() -> Self {
        Self {
            folder: tempfile::tempdir().unwrap(),
            // No message is dropped because a queue is long, so any loss is one of the daemon. Not 0, for no limit:
            // with it mosquitto 2.0.11 disconnects a client that publishes without permission.
            lines: "max_queued_messages 10000000\nmax_inflight_messages 1000\nset_tcp_nodelay true\n".to_owned(),
            persistence: false,
            dynamic_security: false,
        }
    }

    /// Adds a line of mosquitto.conf.
    pub fn line(mut self, line: &str) -> Self {
        writeln!(self.lines, "{line}").unwrap();
        self
    }

    /// Writes sessions and messages to disk when it is stopped.
    pub fn persistent(mut self) -> Self {
        self.persistence = true;
        self
    }

    /// Writes them now and then as well, so that few are gone when it is killed.
    pub fn persistent_when_killed(self) -> Self {
        self.persistent().line("autosave_on_changes true").line("autosave_interval 1000")
    }

    /// Wants a user name and its password, of those given.
    pub fn users(self, users: &[(&str, &str)]) -> Self {
        let file = self.folder.path().join("passwords");
        write(&file, b"");
        for (user, password) in users {
            run(Command::new(path_of("mosquitto_passwd")).arg("-b").arg(&file).args([user, password]));
        }
        self.line("allow_anonymous false").line(&format!("password_file {}", file.display()))
    }

    /// Allows only what the text lists, in the form of mosquitto's `acl_file`.
    pub fn acl(self, text: &str) -> Self {
        let file = self.folder.path().join("acl");
        write(&file, text.as_bytes());
        self.line(&format!("acl_file {}", file.display()))
    }

    /// Speaks TLS only, and wants a certificate of the clients that `certificates` has signed.
    pub fn tls(self, certificates: &crate::certificates::Authority) -> Self {
        let server = certificates.issue("127.0.0.1");
        let folder = self.folder.path().to_owned();
        write(&folder.join("ca.pem"), certificates.pem().as_bytes());
        write(&folder.join("server.pem"), server.certificate.as_bytes());
        write(&folder.join("server.key"), server.key.as_bytes());
        self.line(&format!("cafile {}", folder.join("ca.pem").display()))
            .line(&format!("certfile {}", folder.join("server.pem").display()))
            .line(&format!("keyfile {}", folder.join("server.key").display()))
            .line("require_certificate true")
    }

    /// Loads mosquitto's dynamic security plugin. Its rules can be changed while it runs (see [`Broker::control`]).
    /// Everybody belongs to a group with the role `anyone`, which may publish and receive but not subscribe.
    pub fn dynamic_security(mut self) -> Self {
        self.dynamic_security = true;
        let file = self.folder.path().join("security.json");
        run(Command::new(path_of("mosquitto_ctrl")).args(["dynsec", "init"]).arg(&file).args([ADMIN.0, ADMIN.1]));
        self.line("allow_anonymous true")
            .line(&format!("plugin {}", dynamic_security_plugin().display()))
            .line(&format!("plugin_opt_config_file {}", file.display()))
    }

    /// Starts it.
    pub fn start(self) -> Broker {
        let dynamic_security = self.dynamic_security;
        let broker = Broker::start(self.folder, Kind::Mosquitto { lines: self.lines, persistence: self.persistence });
        if dynamic_security {
            broker.control(&["createRole", "anyone"]);
            for access in ["publishClientSend", "publishClientReceive"] {
                broker.control(&["addRoleACL", "anyone", access, "#", "allow", "1"]);
            }
            broker.control(&["createGroup", "everybody"]);
            broker.control(&["addGroupRole", "everybody", "anyone", "1"]);
            broker.control(&["setAnonymousGroup", "everybody"]);
        }
        broker
    }
}

/// The package's path of the plugin: the folder is named after the machine.
fn dynamic_security_plugin() -> PathBuf {
    let folders = ["x86_64-linux-gnu", "aarch64-linux-gnu"].map(|machine| Path::new("/usr/lib").join(machine));
    folders
        .iter()
        .map(|folder| folder.join("mosquitto_dynamic_security.so"))
        .find(|path| path.is_file())
        .unwrap_or_else(|| panic!("no mosquitto_dynamic_security.so in {folders:?}: run `make test-peers`"))
}

enum Kind {
    Mosquitto { lines: String, persistence: bool },
    Nats,
}

impl Kind {
    /// The text that it logs when it listens.
    fn ready(&self) -> &'static str {
        match self {
            Self::Mosquitto { .. } => " running",
            Self::Nats => "Server is ready",
        }
    }

    fn command(&self, folder: &Path, port: u16) -> Command {
        let state = folder.join("state");
        std::fs::create_dir_all(&state).unwrap();
        match self {
            Self::Mosquitto { lines, persistence } => {
                let mut text = format!("listener {port} 127.0.0.1\n{lines}");
                if !lines.contains("allow_anonymous") {
                    text += "allow_anonymous true\n";
                }
                if *persistence {
                    write!(text, "persistence true\npersistence_location {}/\n", state.display()).unwrap();
                    if !lines.contains("autosave") {
                        text += "autosave_interval 0\n";
                    }
                }
                if rustix::process::geteuid().is_root() {
                    // Otherwise it would become the user `mosquitto`, who does not own this folder.
                    text += "user root\n";
                }
                write(&folder.join("mosquitto.conf"), text.as_bytes());
                let mut command = Command::new(path_of("mosquitto"));
                command.arg("-c").arg(folder.join("mosquitto.conf"));
                command
            }
            Self::Nats => {
                let text = format!(
                    "server_name: test\nlisten: \"127.0.0.1:-1\"\njetstream {{ store_dir: {:?} }}\n\
                     mqtt {{ host: \"127.0.0.1\", port: {port} }}\n",
                    state.display()
                );
                write(&folder.join("nats.conf"), text.as_bytes());
                let mut command = Command::new(path_of("nats-server"));
                command.arg("-c").arg(folder.join("nats.conf"));
                command
            }
        }
    }
}

/// A running broker; killed when dropped.
pub struct Broker {
    pub port: u16,
    kind: Kind,
    folder: TempDir,
    child: Child,
    log: Arc<Mutex<Vec<String>>>,
}

impl Broker {
    /// A mosquitto to which everybody may connect.
    pub fn new() -> Self {
        Setup::new().start()
    }

    /// A NATS server, which speaks MQTT 3.1.1 only.
    pub fn nats() -> Self {
        Self::start(tempfile::tempdir().unwrap(), Kind::Nats)
    }

    fn start(folder: TempDir, kind: Kind) -> Self {
        for _ in 0..ATTEMPTS {
            let port = free_port();
            let log = Arc::new(Mutex::new(Vec::new()));
            let mut child = spawn(kind.command(folder.path(), port), &log);
            if listens(&mut child, kind.ready(), 0, &log) {
                return Self { port, kind, folder, child, log };
            }
            eprintln!("the broker did not start on port {port}:\n{}", log.lock().unwrap().join("\n"));
        }
        panic!("the broker did not start");
    }

    /// As in the setting `mqtt.broker`.
    pub fn url(&self) -> String {
        format!("mqtt://127.0.0.1:{}", self.port)
    }

    /// The same with TLS.
    pub fn tls_url(&self) -> String {
        format!("mqtts://127.0.0.1:{}", self.port)
    }

    /// A file of the broker's folder.
    pub fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Its log.
    pub fn log(&self) -> String {
        self.log.lock().unwrap().join("\n")
    }

    /// Stops it in order: a persistent one saves its state.
    pub fn stop(&mut self) {
        send_signal(self.child.id(), "TERM");
        wait_until("the end of the broker", || self.child.try_wait().unwrap().is_some());
    }

    /// Kills it as a power cut would.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Starts it again on the same port and folder, after [`Self::stop`] or [`Self::kill`].
    pub fn start_again(&mut self) {
        for _ in 0..ATTEMPTS {
            let times = said(&self.log, self.kind.ready());
            self.child = spawn(self.kind.command(self.folder.path(), self.port), &self.log);
            if listens(&mut self.child, self.kind.ready(), times, &self.log) {
                return;
            }
        }
        panic!("the broker did not start again:\n{}", self.log());
    }

    /// Changes the rules of the dynamic security plugin.
    pub fn control(&self, arguments: &[&str]) {
        run(Command::new(path_of("mosquitto_ctrl"))
            .args(["-h", "127.0.0.1", "-p", &self.port.to_string(), "-u", ADMIN.0, "-P", ADMIN.1, "dynsec"])
            .args(arguments));
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            let log = self.log.lock().unwrap();
            let from = log.len().saturating_sub(200);
            eprintln!("--- the end of the broker's log ---\n{}", log[from..].join("\n"));
        }
    }
}

/// A port that is free at this moment.
pub fn free_port() -> u16 {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port()
}

fn spawn(mut command: Command, log: &Arc<Mutex<Vec<String>>>) -> Child {
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let (stderr, log) = (child.stderr.take().unwrap(), log.clone());
    std::thread::spawn(move || {
        for line in BufReader::new(stderr).lines().map_while(Result::ok) {
            log.lock().unwrap().push(line);
        }
    });
    child
}

/// Waits until the broker has said `ready` more than `times` times, and so listens on a port that is its own. `false`
/// when it ended, because another process has the port.
fn listens(child: &mut Child, ready: &str, times: usize, log: &Mutex<Vec<String>>) -> bool {
    let deadline = Instant::now() + START;
    while Instant::now() < deadline && child.try_wait().unwrap().is_none() {
        if said(log, ready) > times {
            return true;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let _ = child.kill();
    let _ = child.wait();
    false
}

fn said(log: &Mutex<Vec<String>>, text: &str) -> usize {
    log.lock().unwrap().iter().filter(|line| line.contains(text)).count()
}
