//! TLS as a server: the certificate of this box, renewed while it serves, and those of its callers.

mod callers;
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

use super::config::HttpConfig;
pub use certificate::{CertificateFacts, UnreadableCertificate, fuzz_certificate};
pub use files::ServerTlsError;
use files::{Material, Recipe, Trust};
pub use handshake::HandshakeCounts;
use handshake::Handshakes;
pub(super) use handshake::TlsCaller;
use names::BoxNames;
pub use self_signed::SelfSignedError;

/// How often the files are looked at.
const LOOKED_AT: Duration = Duration::from_secs(2);

/// Those who look after this box learn of a certificate's end so long before it.
pub const WARNED_BEFORE: Duration = Duration::from_hours(14 * 24);

/// How often the files are read although they look as before: what is made here is renewed then.
const READ_ANYWAY: Duration = Duration::from_hours(1);

/// And again each day.
const WARNED_AGAIN: Duration = Duration::from_hours(24);

/// What TLS is served with. Clones share it.
#[derive(Clone)]
pub struct ServerTls {
    shared: Arc<Shared>,
}

struct Shared {
    source: Source,
    /// `None` until the files could be read: then callers are turned away.
    live: ArcSwapOption<Material>,
    /// What client certificates are judged by now.
    trust: watch::Sender<Option<Trust>>,
    tickets: Option<Arc<dyn ProducesTickets>>,
    handshakes: Handshakes,
    /// Records whose certificate was refused.
    audit: AuditSink,
    told: Mutex<Told>,
}

/// Where it comes from.
#[derive(Debug, Clone)]
struct Source {
    http: HttpConfig,
    state: PathBuf,
}

/// What is known of the files, and what was told of it.
#[derive(Debug, Default)]
struct Told {
    /// What they looked like from outside when they were read last, and whether they did the time before.
    seen: Option<(Vec<Look>, bool)>,
    /// When they were read last.
    read: Option<Instant>,
    /// Why they were not taken when they were looked at last.
    error: Option<String>,
    logged: bool,
    /// When the end of the certificate was logged last.
    warned: Option<Instant>,
}

/// How TLS does.
#[derive(Debug, Clone)]
pub struct TlsStatus {
    /// The certificate that is shown now; `None` where there is none yet.
    pub certificate: Option<CertificateFacts>,
    /// When the next list of revoked certificates was due, in milliseconds since the Unix epoch.
    pub crl_due_ms: Option<u64>,
    /// Why the files as they are now are not taken.
    pub error: Option<String>,
    pub handshakes: HandshakeCounts,
}

impl std::fmt::Debug for ServerTls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ServerTls").field("status", &self.status()).finish()
    }
}

impl ServerTls {
    /// What the files say, where an address is listened on with TLS; makes a self-signed certificate where one is wanted. `state`
    /// is the folder of what this box remembers. It blocks.
    ///
    /// Files that cannot be used are told in the log, and callers with TLS are turned away until they can: what this box
    /// serves otherwise does not wait for them.
    pub fn open(http: &HttpConfig, state: &Path, audit: AuditSink) -> Option<Self> {
        if !http.serves_tls() {
            return None;
        }
        let tickets = rustls::crypto::aws_lc_rs::Ticketer::new();
        if let Err(error) = &tickets {
            tracing::warn!(%error, "TLS sessions cannot be resumed");
        }
        let shared = Shared {
            source: Source { http: http.clone(), state: state.to_owned() },
            live: ArcSwapOption::empty(),
            trust: watch::Sender::new(None),
            tickets: tickets.ok(),
            handshakes: Handshakes::new(http),
            audit,
            told: Mutex::default(),
        };
        let tls = Self { shared: Arc::new(shared) };
        tls.look(true);
        Some(tls)
    }

    /// Takes up renewed files until the shutdown: when they change, and at SIGHUP.
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
        let mut ticks = tokio::time::interval(LOOKED_AT);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            let asked = tokio::select! {
                _ = ticks.tick() => false,
                _ = hangup.recv() => true,
            };
            let tls = self.clone();
            let _ = tokio::task::spawn_blocking(move || tls.look(asked)).await;
        }
    }

    /// How it does.
    pub fn status(&self) -> TlsStatus {
        let live = self.shared.live.load();
        TlsStatus {
            certificate: live.as_ref().map(|live| live.facts.clone()),
            crl_due_ms: live.as_ref().and_then(|live| live.crl_due_ms),
            error: self.told().error.clone(),
            handshakes: self.shared.handshakes.counts(),
        }
    }

    /// Looks at the files, and takes them up if they are others than before and whole. `asked` is whether somebody waits for
    /// the result.
    fn look(&self, asked: bool) {
        if !self.told().is_due(self.shared.source.look(), asked) {
            return;
        }
        let now_ms = now_ms();
        let read = self.shared.source.renew(now_ms).and_then(|()| self.read(now_ms));
        let mut told = self.told();
        match read {
            Ok(renewed) => {
                if told.logged {
                    tracing::info!("the files of http.tls are good again");
                }
                (told.error, told.logged) = (None, false);
                if let Some(material) = renewed {
                    told.warned = None;
                    self.take_up(material);
                }
            }
            Err(error) => {
                let error = error.to_string();
                // Who renews a certificate writes two files, one after the other: what is wrong once may be half of it.
                let stays = told.error.as_ref() == Some(&error);
                if (asked || stays) && !(stays && told.logged) {
                    let serving = if self.shared.live.load().is_some() {
                        "the files of http.tls cannot be used; the certificate of before stays"
                    } else {
                        "the files of http.tls cannot be used; https:// is not served until they can"
                    };
                    tracing::error!(%error, "{serving}");
                    told.logged = true;
                } else if !stays {
                    told.logged = false;
                }
                told.error = Some(error);
            }
        }
        self.warn(&mut told, now_ms);
    }

    /// Reads the files; `None` when they hold what is served already.
    fn read(&self, now_ms: u64) -> Result<Option<Material>, ServerTlsError> {
        let material = self.shared.source.read(self.shared.tickets.as_ref())?;
        let Some(live) = &*self.shared.live.load() else { return Ok(Some(material)) };
        if material.digest == live.digest {
            return Ok(None);
        }
        let is_valid = |facts: &CertificateFacts| (facts.not_before_ms..facts.not_after_ms).contains(&now_ms);
        if is_valid(&live.facts) && !is_valid(&material.facts) {
            let (file, _) = self.shared.source.pair()?;
            return Err(if material.facts.not_after_ms <= now_ms {
                ServerTlsError::Expired { file }
            } else {
                ServerTlsError::NotYet { file, from: clock::rfc3339(material.facts.not_before_ms) }
            });
        }
        Ok(Some(material))
    }

    fn take_up(&self, material: Material) {
        let CertificateFacts { names, not_after_ms, .. } = material.facts.clone();
        let (fingerprint, until) = (material.facts.shown_fingerprint(), clock::rfc3339(not_after_ms));
        let trust = material.trust.clone();
        self.shared.live.store(Some(Arc::new(material)));
        // Those who are connected are judged anew.
        let digest = trust.digest;
        self.shared
            .trust
            .send_if_modified(|before| before.replace(trust).is_some_and(|before| before.digest != digest));
        // From here on everybody sees it.
        tracing::info!(?names, until, fingerprint, "the certificate for https:// was read");
        if self.shared.source.http.tls.self_signed {
            tracing::warn!(
                fingerprint,
                "the certificate for https:// is signed by this box alone: a caller cannot tell it from anybody else's \
                 unless they compare the fingerprint; set http.tls.certificate_file to one that your authority signed"
            );
        }
    }

    fn warn(&self, told: &mut Told, now_ms: u64) {
        let Some(live) = &*self.shared.live.load() else { return };
        if told.warned.is_some_and(|warned| warned.elapsed() < WARNED_AGAIN) {
            return;
        }
        let until = clock::rfc3339(live.facts.not_after_ms);
        if live.facts.not_after_ms <= now_ms {
            tracing::error!(until, "the certificate for https:// has expired: callers refuse it; renew it");
        } else if u128::from(live.facts.not_after_ms - now_ms) < WARNED_BEFORE.as_millis() {
            tracing::warn!(until, "the certificate for https:// is about to expire: renew it");
        } else if live.crl_due_ms.is_some_and(|due_ms| due_ms <= now_ms) {
            let due = live.crl_due_ms.map(clock::rfc3339);
            tracing::warn!(
                due,
                "the list in http.tls.client_crl_file is old: what was revoked since is not known here"
            );
        } else {
            return;
        }
        told.warned = Some(Instant::now());
    }

    fn told(&self) -> MutexGuard<'_, Told> {
        // Nothing panics under this lock.
        self.shared.told.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How a file looks from outside: its device, its number, its size, and when it was changed.
type Look = Option<(u64, u64, u64, i64, i64)>;

impl Told {
    /// Whether the files are to be read: not while they look as they did the last two times. Once is not enough, as a clock
    /// stands still for some milliseconds, in which a file can change twice.
    fn is_due(&mut self, looks: Vec<Look>, asked: bool) -> bool {
        let same = self.seen.as_ref().is_some_and(|(before, _)| *before == looks);
        let settled = same && self.seen.as_ref().is_some_and(|(_, twice)| *twice);
        self.seen = Some((looks, same));
        let old = self.read.is_none_or(|read| read.elapsed() >= READ_ANYWAY);
        let is_due = asked || !settled || old || self.error.is_some();
        if is_due {
            self.read = Some(Instant::now());
        }
        is_due
    }
}

impl Source {
    /// How the files look.
    fn look(&self) -> Vec<Look> {
        use std::os::unix::fs::MetadataExt as _;
        let pair = self.pair().ok().map(|(certificate, key)| [certificate, key]);
        let tls = &self.http.tls;
        let files = pair.into_iter().flatten().chain(tls.client_ca_file.clone()).chain(tls.client_crl_file.clone());
        let look = |file: SecretFile| {
            let found = std::fs::metadata(file.path()?).ok()?;
            Some((found.dev(), found.ino(), found.size(), found.ctime(), found.ctime_nsec()))
        };
        files.map(look).collect()
    }

    /// The certificate and its key.
    fn pair(&self) -> Result<(SecretFile, SecretFile), ServerTlsError> {
        match (&self.http.tls.certificate_file, &self.http.tls.key_file) {
            (Some(certificate), Some(key)) => Ok((certificate.clone(), key.clone())),
            _ if self.http.tls.self_signed => Ok(self_signed::files(&self.state)),
            _ => Err(ServerTlsError::NoCertificate),
        }
    }

    fn read(&self, tickets: Option<&Arc<dyn ProducesTickets>>) -> Result<Material, ServerTlsError> {
        let (certificate, key) = self.pair()?;
        Recipe {
            settings: &self.http.tls,
            pair: (&certificate, &key),
            time: CertificateTime { system_ms: clock::unix_millis, floor: &clock::FLOOR },
            tickets,
        }
        .read()
    }

    /// Makes a new self-signed certificate, where one is wanted and the one that is kept does not do any more.
    fn renew(&self, now_ms: u64) -> Result<(), ServerTlsError> {
        if !self.http.tls.self_signed {
            return Ok(());
        }
        let names = BoxNames::find(Path::new("/"), &self.http.listen);
        if let Some(reason) = self_signed::renew(&self.state, &names, now_ms)? {
            tracing::info!(reason, "a self-signed certificate was made");
        }
        Ok(())
    }
}

/// What the files of `[http.tls]` hold now, for a command line that only looks. `None` where no address is listened on with TLS.
pub fn inspect(http: &HttpConfig, state: &Path) -> Option<Result<Inspected, ServerTlsError>> {
    http.serves_tls().then(|| {
        let source = Source { http: http.clone(), state: state.to_owned() };
        let (certificate_file, _) = source.pair()?;
        let Material { facts, crl_due_ms, .. } = source.read(None)?;
        Ok(Inspected { certificate_file, certificate: facts, crl_due_ms })
    })
}

/// What the files of `[http.tls]` hold.
#[derive(Debug, Clone)]
pub struct Inspected {
    pub certificate_file: SecretFile,
    pub certificate: CertificateFacts,
    /// When the next list of revoked certificates was due, in milliseconds since the Unix epoch.
    pub crl_due_ms: Option<u64>,
}

/// The time that certificates are judged at.
fn now_ms() -> u64 {
    clock::FLOOR.plausible_millis(clock::unix_millis())
}
