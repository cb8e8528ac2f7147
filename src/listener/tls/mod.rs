//! TLS as a server: the certificate of this box, renewed while it serves, and those of its callers.

mod accept;
mod network_limiter;
mod certificate;
pub mod config;
mod files;
mod handshake;
pub(crate) mod metrics;
mod names;
mod self_signed;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use arc_swap::ArcSwapOption;
use ledge_base::clock;
use ledge_base::secret::SecretFile;
use ledge_egress::CertificateTime;
use ledge_service::audit_event::AuditSink;
use ledge_service::shutdown::Shutdown;
use rustls::server::ProducesTickets;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;

use super::address::ListenAddress;
#[cfg(any(test, feature = "fuzzing"))]
pub use certificate::fuzz_certificate;
pub use certificate::{CertificateFacts, UnreadableCertificate};
use config::TlsConfig;
pub use files::{ApplicationProtocol, ServerTlsError};
use files::{ClientTrust, LoadedTlsFiles, TlsFilesToLoad};
pub use handshake::HandshakeCounts;
pub use handshake::TlsCaller;
use handshake::{Handshakes, now_ms};
use names::CertificateNames;
pub use names::own_addresses;
pub use self_signed::SelfSignedError;

/// The time between two checks whether the files changed.
const FILE_CHECK_INTERVAL: Duration = Duration::from_secs(2);

/// The time before the expiry of a certificate from which the log and `ledge doctor` warn.
pub const EXPIRY_WARNING_PERIOD: Duration = Duration::from_hours(14 * 24);

/// The time after which the files are read although they did not change: a self-signed certificate is renewed then.
const FILE_READ_INTERVAL: Duration = Duration::from_hours(1);

/// The time between two warnings of the expiry.
const WARNING_INTERVAL: Duration = Duration::from_hours(24);

/// TLS as a server. Clones share it.
#[derive(Clone)]
pub struct ServerTls {
    state: Arc<TlsState>,
}

struct TlsState {
    source: TlsSource,
    /// `None` until the files could be read; callers are refused until then.
    live: ArcSwapOption<LoadedTlsFiles>,
    /// The authorities and revocations that client certificates are verified with.
    trust: watch::Sender<Option<ClientTrust>>,
    tickets: Option<Arc<dyn ProducesTickets>>,
    handshakes: Handshakes,
    /// Records callers with a refused certificate.
    audit: AuditSink,
    files: Mutex<TlsFileStatus>,
}

/// The configuration of TLS and the state folder, from which certificate and key come.
#[derive(Debug, Clone)]
pub struct TlsSource {
    settings: TlsConfig,
    /// The addresses of every listener.
    listen: Vec<ListenAddress>,
    state: PathBuf,
}

/// The status of the files, and its logged part.
#[derive(Debug, Default)]
struct TlsFileStatus {
    /// The stamps at the last check, and whether they were the same at the check before.
    seen: Option<(Vec<TlsFileStamp>, bool)>,
    /// The time at which the files were last read.
    read: Option<Instant>,
    /// The reason why the files were refused at the last check.
    error: Option<String>,
    logged: bool,
    /// The time at which the expiry was last logged.
    warned: Option<Instant>,
}

/// The status of TLS.
#[derive(Debug, Clone)]
pub struct TlsStatus {
    /// The certificate in use; `None` before the first one.
    pub certificate: Option<CertificateFacts>,
    /// The time at which the next list of revoked certificates is due, in milliseconds since the Unix epoch.
    pub crl_due_ms: Option<u64>,
    /// The reason why the current files are refused.
    pub error: Option<String>,
    pub handshakes: HandshakeCounts,
}

impl std::fmt::Debug for ServerTls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ServerTls").field("status", &self.status()).finish()
    }
}

impl ServerTls {
    /// Reads the files, where an address is served with TLS, and makes a self-signed certificate where one is
    /// configured. `state` is the state folder. It blocks.
    ///
    /// Files that cannot be used are logged, and callers with TLS are refused until they can be used. Everything else
    /// is served without them.
    pub fn open(source: TlsSource, max_connections: usize, audit: AuditSink) -> Option<Self> {
        if !source.is_served() {
            return None;
        }
        let tickets = rustls::crypto::aws_lc_rs::Ticketer::new();
        if let Err(error) = &tickets {
            tracing::warn!(%error, "no TLS tickets can be made, so connections cannot be resumed");
        }
        let state = TlsState {
            handshakes: Handshakes::new(&source.settings, max_connections),
            source,
            live: ArcSwapOption::empty(),
            trust: watch::Sender::new(None),
            tickets: tickets.ok(),
            audit,
            files: Mutex::default(),
        };
        let tls = Self { state: Arc::new(state) };
        tls.check_files(true);
        Some(tls)
    }

    /// Starts the task that installs renewed files until the shutdown: when they change, and at SIGHUP.
    pub fn keep_current(&self, shutdown: &Shutdown) -> std::io::Result<()> {
        let mut hangup = signal(SignalKind::hangup())?;
        let (tls, stop) = (self.clone(), shutdown.clone());
        shutdown.spawn(async move {
            tokio::select! {
                () = tls.watch(&mut hangup) => {}
                () = stop.requested() => {}
            }
        });
        Ok(())
    }

    async fn watch(&self, hangup: &mut Signal) {
        let mut ticks = tokio::time::interval(FILE_CHECK_INTERVAL);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            let asked = tokio::select! {
                _ = ticks.tick() => false,
                _ = hangup.recv() => true,
            };
            let tls = self.clone();
            let _ = tokio::task::spawn_blocking(move || tls.check_files(asked)).await;
        }
    }

    pub fn status(&self) -> TlsStatus {
        let live = self.state.live.load();
        TlsStatus {
            certificate: live.as_ref().map(|live| live.facts.clone()),
            crl_due_ms: live.as_ref().and_then(|live| live.crl_due_ms),
            error: self.files().error.clone(),
            handshakes: self.state.handshakes.counts(),
        }
    }

    /// Checks the files, and installs them if they are new and complete. `asked` is set at the start and at SIGHUP.
    fn check_files(&self, asked: bool) {
        if !self.files().is_due(self.state.source.stamps(), asked) {
            return;
        }
        let now_ms = now_ms();
        let read = self.state.source.renew(now_ms).and_then(|()| self.read(now_ms));

        let mut files = self.files();
        match read {
            Ok(renewed) => {
                if files.logged {
                    tracing::info!(name: "tls.files_accepted", "the files of http.tls can be used again");
                }
                (files.error, files.logged) = (None, false);
                if let Some(material) = renewed {
                    files.warned = None;
                    self.install(material);
                }
            }
            Err(error) => {
                let error = error.to_string();
                // A renewal writes two files, one after the other: an error that is found once may be half a renewal.
                let stays = files.error.as_ref() == Some(&error);
                if (asked || stays) && !(stays && files.logged) {
                    if self.state.live.load().is_some() {
                        tracing::error!(
                            name: "tls.files_rejected",
                            %error,
                            "the files of http.tls cannot be used; the previous certificate stays in use"
                        );
                    } else {
                        tracing::error!(
                            name: "tls.not_served",
                            %error,
                            "the files of http.tls cannot be used; https:// is not served until they are corrected"
                        );
                    }
                    files.logged = true;
                } else if !stays {
                    files.logged = false;
                }
                files.error = Some(error);
            }
        }

        self.warn(&mut files, now_ms);
    }

    /// Reads the files; `None` when their content is in use already.
    fn read(&self, now_ms: u64) -> Result<Option<LoadedTlsFiles>, ServerTlsError> {
        let material = self.state.source.read(self.state.tickets.as_ref())?;
        let Some(live) = &*self.state.live.load() else { return Ok(Some(material)) };
        if material.digest == live.digest {
            return Ok(None);
        }
        let is_valid = |facts: &CertificateFacts| (facts.not_before_ms..facts.not_after_ms).contains(&now_ms);
        if is_valid(&live.facts) && !is_valid(&material.facts) {
            let (file, _) = self.state.source.pair()?;
            return Err(if material.facts.not_after_ms <= now_ms {
                ServerTlsError::Expired { file }
            } else {
                ServerTlsError::NotYet { file, from: clock::rfc3339(material.facts.not_before_ms) }
            });
        }
        Ok(Some(material))
    }

    fn install(&self, material: LoadedTlsFiles) {
        let CertificateFacts { names, not_after_ms, .. } = material.facts.clone();
        let (fingerprint, until) = (material.facts.shown_fingerprint(), clock::rfc3339(not_after_ms));
        let trust = material.trust.clone();
        self.state.live.store(Some(Arc::new(material)));
        // Open connections check their client certificates again.
        let digest = trust.digest;
        self.state.trust.send_if_modified(|before| before.replace(trust).is_some_and(|before| before.digest != digest));
        // From here on every new connection uses it.
        tracing::info!(
            name: "tls.certificate_loaded",
            ?names,
            until,
            fingerprint,
            "the certificate for https:// was read"
        );
        if self.state.source.settings.self_signed {
            tracing::warn!(
                name: "tls.certificate_self_signed",
                fingerprint,
                "the certificate for https:// is self-signed: callers cannot verify it unless they compare the \
                 fingerprint; set http.tls.certificate_file to a certificate of your authority"
            );
        }
    }

    fn warn(&self, files: &mut TlsFileStatus, now_ms: u64) {
        let Some(live) = &*self.state.live.load() else { return };
        if files.warned.is_some_and(|warned| warned.elapsed() < WARNING_INTERVAL) {
            return;
        }
        let until = clock::rfc3339(live.facts.not_after_ms);
        if live.facts.not_after_ms <= now_ms {
            tracing::error!(until, "the certificate for https:// has expired and callers refuse it: renew it");
        } else if u128::from(live.facts.not_after_ms - now_ms) < EXPIRY_WARNING_PERIOD.as_millis() {
            tracing::warn!(
                name: "tls.certificate_expiring",
                until,
                "the certificate for https:// expires soon: renew it"
            );
        } else if live.crl_due_ms.is_some_and(|due_ms| due_ms <= now_ms) {
            let due = live.crl_due_ms.map(clock::rfc3339);
            tracing::warn!(
                due,
                "the list in http.tls.client_crl_file is outdated, so later revocations are not known: renew it"
            );
        } else {
            return;
        }
        files.warned = Some(Instant::now());
    }

    fn files(&self) -> MutexGuard<'_, TlsFileStatus> {
        // Nothing panics under this lock.
        self.state.files.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The metadata of a file that changes with its content: device, inode, size, and time of change.
type TlsFileStamp = Option<(u64, u64, u64, i64, i64)>;

impl TlsFileStatus {
    /// Returns `true` if the files must be read. They need not while the stamps are those of the last two checks. One
    /// check is not enough: the time of change has a resolution of some milliseconds, in which a file can change twice.
    fn is_due(&mut self, stamps: Vec<TlsFileStamp>, asked: bool) -> bool {
        let same = self.seen.as_ref().is_some_and(|(before, _)| *before == stamps);
        let settled = same && self.seen.as_ref().is_some_and(|(_, twice)| *twice);
        self.seen = Some((stamps, same));
        let old = self.read.is_none_or(|read| read.elapsed() >= FILE_READ_INTERVAL);
        let is_due = asked || !settled || old || self.error.is_some();
        if is_due {
            self.read = Some(Instant::now());
        }
        is_due
    }
}

impl TlsSource {
    /// The files of `settings` for listeners at `listen`. `state` is the state folder of this box, which has the
    /// certificate that it made itself.
    pub fn new(settings: &TlsConfig, listen: Vec<ListenAddress>, state: &Path) -> Self {
        Self { settings: settings.clone(), listen, state: state.to_owned() }
    }

    /// Returns `true` if a listener is served with TLS.
    pub fn is_served(&self) -> bool {
        self.listen.iter().any(ListenAddress::is_tls)
    }

    /// Returns `true` if the certificate is one that this box makes itself.
    pub fn is_self_signed(&self) -> bool {
        self.settings.self_signed
    }

    /// Reads the files, for the command line. `None` where no listener is served with TLS.
    pub fn inspect(&self) -> Option<Result<InspectedTlsFiles, ServerTlsError>> {
        self.is_served().then(|| {
            let (certificate_file, _) = self.pair()?;
            let LoadedTlsFiles { facts, crl_due_ms, .. } = self.read(None)?;
            Ok(InspectedTlsFiles { certificate_file, certificate: facts, crl_due_ms })
        })
    }

    /// The stamps of the files.
    fn stamps(&self) -> Vec<TlsFileStamp> {
        use std::os::unix::fs::MetadataExt as _;
        let pair = self.pair().ok().map(|(certificate, key)| [certificate, key]);
        let tls = &self.settings;
        let files = pair.into_iter().flatten().chain(tls.client_ca_file.clone()).chain(tls.client_crl_file.clone());
        let stamp = |file: SecretFile| {
            let found = std::fs::metadata(file.path()?).ok()?;
            Some((found.dev(), found.ino(), found.size(), found.ctime(), found.ctime_nsec()))
        };
        files.map(stamp).collect()
    }

    /// The files of the certificate and its key.
    fn pair(&self) -> Result<(SecretFile, SecretFile), ServerTlsError> {
        match (&self.settings.certificate_file, &self.settings.key_file) {
            (Some(certificate), Some(key)) => Ok((certificate.clone(), key.clone())),
            _ if self.settings.self_signed => Ok(self_signed::files(&self.state)),
            _ => Err(ServerTlsError::NoCertificate),
        }
    }

    fn read(&self, tickets: Option<&Arc<dyn ProducesTickets>>) -> Result<LoadedTlsFiles, ServerTlsError> {
        let (certificate, key) = self.pair()?;
        TlsFilesToLoad {
            settings: &self.settings,
            pair: (&certificate, &key),
            time: CertificateTime { system_ms: clock::unix_millis, floor: &clock::FLOOR },
            tickets,
        }
        .read()
    }

    /// Makes a new self-signed certificate, where one is configured and the stored one is outdated.
    fn renew(&self, now_ms: u64) -> Result<(), ServerTlsError> {
        if !self.settings.self_signed {
            return Ok(());
        }
        let names = CertificateNames::find(Path::new("/"), &self.listen);
        if let Some(reason) = self_signed::renew(&self.state, &names, now_ms)? {
            tracing::info!(reason, "a self-signed certificate was made");
        }
        Ok(())
    }
}

/// The content of the files of `[http.tls]`.
#[derive(Debug, Clone)]
pub struct InspectedTlsFiles {
    pub certificate_file: SecretFile,
    pub certificate: CertificateFacts,
    /// The time at which the next list of revoked certificates is due, in milliseconds since the Unix epoch.
    pub crl_due_ms: Option<u64>,
}
