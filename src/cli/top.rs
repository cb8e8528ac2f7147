//! `ledge top`: shows the activity of a running daemon, refreshed at an interval.

mod exposition;
mod render;
mod snapshot;
mod terminal;
mod view;

use std::io::{IsTerminal, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use clap::Args;
use ledge_base::clock;
use ledge_egress::{DaemonAddress, DaemonConnection};
use ledge_http::config::ListenAddress;
use serde_json::json;
use tokio::signal::unix::{SignalKind, signal};

use super::features::daemon::message;
use super::server::ServerArgs;
use super::stop_signals::StopSignals;
use super::{Exit, Globals, Output, block_on};
use render::{History, TerminalSize};
use snapshot::Snapshot;
use view::View;

/// The arguments of `ledge top`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct TopArgs {
    /// The server to watch, for example http://127.0.0.1:8000 or unix:.ledge/ledge.sock [default: the Unix socket of
    /// the configuration, or its first address].
    #[arg(long)]
    pub url: Option<String>,
    #[command(flatten)]
    pub server: ServerArgs,
    /// The refresh interval in seconds. Every figure covers one interval.
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = seconds)]
    pub interval: Duration,
    /// Write one view and exit. This is the default when the output is not a terminal.
    #[arg(long)]
    pub once: bool,
    /// Write JSON: one line with one object for each interval, in base units.
    #[arg(long)]
    pub json: bool,
}

const EXAMPLES: &str = "\
Examples:
  ledge top                                   the server of this box; q or Ctrl-C ends
  ledge top --url https://box:8443 --key-file ~/box.key --interval 5
  ledge top --once --json | jq '.models[] | {model, p99_seconds}'";

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "expected seconds, such as 0.5".to_owned())?;
    if !(0.1..=3600.0).contains(&seconds) {
        return Err("expected 0.1 to 3600 seconds".to_owned());
    }
    Ok(Duration::from_secs_f64(seconds))
}

/// Runs the verb.
pub fn run(globals: &Globals, args: &TopArgs, out: &mut Output) -> anyhow::Result<Exit> {
    let url = match &args.url {
        Some(url) => url.clone(),
        None => own_daemon(&globals.load_config()?.http.listen).context("name the server with --url")?,
    };
    let daemon = ScrapedDaemon { address: args.server.at(&url)?, url, connection: None };
    block_on(async {
        if args.once || !(args.json || std::io::stdout().is_terminal()) {
            once(daemon, args, out).await
        } else if args.json {
            each_interval(daemon, args, out).await
        } else {
            live(daemon, args, out).await
        }
    })?
}

/// The address of the daemon with this configuration: its Unix socket if this user may open it, as the socket
/// identifies the user. Otherwise the first address with a fixed port.
pub(super) fn own_daemon(listen: &[ListenAddress]) -> anyhow::Result<String> {
    let is_open = |path: &Path| rustix::fs::access(path, rustix::fs::Access::WRITE_OK).is_ok();
    let url = |address: &ListenAddress| match address {
        // Port 0 means any free port, which only the daemon knows.
        ListenAddress::Tcp(address) if address.port() == 0 => None,
        ListenAddress::Tcp(address) if address.ip().is_unspecified() => {
            let loopback = if address.is_ipv4() { "127.0.0.1" } else { "[::1]" };
            Some(format!("http://{loopback}:{}", address.port()))
        }
        ListenAddress::Tcp(address) => Some(format!("http://{address}")),
        // A certificate is rarely valid for a loopback address.
        ListenAddress::Tls(_) => None,
        ListenAddress::Unix(_) => Some(address.to_string()),
    };
    let socket = listen.iter().find(|address| matches!(address, ListenAddress::Unix(path) if is_open(path)));
    let url = socket.into_iter().chain(listen).find_map(url);
    url.context("http.listen has no Unix socket and no http:// address with a fixed port")
}

/// The longest time of a scrape.
const SCRAPE_TIMEOUT: Duration = Duration::from_secs(10);

/// A daemon to scrape. The connection is reused until an error.
struct ScrapedDaemon {
    url: String,
    address: DaemonAddress,
    connection: Option<DaemonConnection>,
}

impl ScrapedDaemon {
    async fn scrape(&mut self) -> anyhow::Result<Snapshot> {
        let scraped = tokio::time::timeout(SCRAPE_TIMEOUT, self.try_scrape()).await;
        let scraped =
            scraped.unwrap_or_else(|_| bail!("{} did not answer within {} s", self.url, SCRAPE_TIMEOUT.as_secs()));
        if scraped.is_err() {
            self.connection = None;
        }
        scraped
    }

    async fn try_scrape(&mut self) -> anyhow::Result<Snapshot> {
        let connection = match &mut self.connection {
            Some(connection) => connection,
            none => none.insert(DaemonConnection::open(&self.address).await?),
        };
        let answer = connection.get("/metrics").await?;
        if answer.status != 200 {
            bail!("{} refuses the metrics: {}", self.url, message(answer.status, &answer.body));
        }
        let text = std::str::from_utf8(&answer.body).context("the metrics are not UTF-8 text")?;
        Ok(Snapshot::parse(text, Instant::now())?)
    }
}

fn between(older: &Snapshot, newer: &Snapshot) -> View {
    #[expect(clippy::cast_precision_loss, reason = "exact for 285,000 years of milliseconds")]
    let now = clock::unix_millis() as f64 / 1e3;
    View::between(older, newer, now)
}

async fn once(mut daemon: ScrapedDaemon, args: &TopArgs, out: &mut Output) -> anyhow::Result<Exit> {
    let older = daemon.scrape().await?;
    tokio::time::sleep(args.interval).await;
    let view = between(&older, &daemon.scrape().await?);
    if args.json {
        writeln!(out, "{}", serde_json::to_string(&view)?)?;
    } else {
        let terminal = std::io::stdout().is_terminal();
        let size = TerminalSize { width: if terminal { terminal::size().width } else { 120 }, height: usize::MAX };
        for line in render::lines(&view, &daemon.url, &History::new(), size) {
            writeln!(out, "{}", line.text.trim_end())?;
        }
    }
    Ok(Exit::Success)
}

/// Writes JSON until the reader closes the output.
async fn each_interval(mut daemon: ScrapedDaemon, args: &TopArgs, out: &mut Output) -> anyhow::Result<Exit> {
    let mut older = None;
    loop {
        let scraped = daemon.scrape().await;
        match (&scraped, &older) {
            (Ok(newer), Some(older)) => writeln!(out, "{}", serde_json::to_string(&between(older, newer))?)?,
            (Ok(_), None) => {}
            (Err(error), _) => writeln!(out, "{}", json!({"error": format!("{error:#}")}))?,
        }
        out.flush()?;
        older = scraped.ok();
        tokio::time::sleep(args.interval).await;
    }
}

/// Draws on the terminal until a signal or the key q.
async fn live(mut daemon: ScrapedDaemon, args: &TopArgs, out: &mut Output) -> anyhow::Result<Exit> {
    let mut stop = StopSignals::new()?;
    let mut resized = signal(SignalKind::window_change())?;
    let mut keys = terminal::keys();
    let mut screen = terminal::Screen::enter(out)?;
    let mut display =
        Display { url: daemon.url.clone(), older: None, connection: Connection::Opening, history: History::new() };
    loop {
        screen.draw(&display.lines())?;
        // The next scrape starts one interval after the last answer, not after the last key.
        let pause = if matches!(display.connection, Connection::Opening) { Duration::ZERO } else { args.interval };
        let mut next = std::pin::pin!(async {
            tokio::time::sleep(pause).await;
            daemon.scrape().await
        });
        let scraped = loop {
            tokio::select! {
                scraped = &mut next => break scraped,
                _ = resized.recv() => screen.draw(&display.lines())?,
                Some(key) = keys.recv() => if matches!(key, b'q' | b'Q') { return Ok(Exit::Success) },
                () = stop.requested() => return Ok(Exit::Success),
            }
        };
        display.update(scraped);
    }
}

/// The content of the terminal.
struct Display {
    url: String,
    older: Option<Snapshot>,
    connection: Connection,
    history: History,
}

/// The state of the connection to the daemon.
enum Connection {
    Opening,
    Running(Box<View>),
    Lost(String),
}

/// The number of intervals in the sparkline of the header.
const HISTORY_INTERVALS: usize = 40;

impl Display {
    fn update(&mut self, scraped: anyhow::Result<Snapshot>) {
        match scraped {
            Ok(newer) => {
                // The first view compares the snapshot with itself: it shows the current state, without rates.
                let view = between(self.older.as_ref().unwrap_or(&newer), &newer);
                if self.older.is_some() {
                    self.history.push_back(view.requests_per_second());
                    while self.history.len() > HISTORY_INTERVALS {
                        self.history.pop_front();
                    }
                }
                self.connection = Connection::Running(Box::new(view));
                self.older = Some(newer);
            }
            Err(error) => {
                self.connection = Connection::Lost(format!("{error:#}"));
                self.older = None;
            }
        }
    }

    fn lines(&self) -> Vec<render::Line> {
        let size = terminal::size();
        match &self.connection {
            Connection::Opening => render::lost(&self.url, "connecting", size),
            Connection::Running(view) => render::lines(view, &self.url, &self.history, size),
            Connection::Lost(reason) => render::lost(&self.url, reason, size),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_own_daemon_is_behind_its_socket_or_at_the_first_address_with_a_fixed_port() {
        let url = |listen: &[&str]| {
            let listen: Vec<_> = listen.iter().map(|text| text.parse().unwrap()).collect();
            own_daemon(&listen).ok()
        };
        assert_eq!(url(&["127.0.0.1:8000", "unix:a.sock"]).as_deref(), Some("http://127.0.0.1:8000"));
        assert_eq!(url(&["127.0.0.1:0", "unix:a.sock"]).as_deref(), Some("unix:a.sock"));
        let folder = tempfile::tempdir().unwrap();
        let socket = format!("unix:{}", folder.path().display());
        assert_eq!(url(&["127.0.0.1:8000", &socket]).as_deref(), Some(&*socket));
        assert_eq!(url(&["0.0.0.0:80"]).as_deref(), Some("http://127.0.0.1:80"));
        assert_eq!(url(&["[::]:80"]).as_deref(), Some("http://[::1]:80"));
        assert_eq!(url(&["127.0.0.1:0"]), None);
    }

    #[test]
    fn an_interval_is_neither_a_busy_loop_nor_for_ever() {
        assert_eq!(seconds("0.5"), Ok(Duration::from_millis(500)));
        for wrong in ["0", "-1", "NaN", "inf", "1e9", "soon"] {
            assert!(seconds(wrong).is_err(), "{wrong}");
        }
    }
}
