//! Outbound traffic since the installation: the counters of all starts, in one file.
//!
//! No connection waits for the file. It is written every ten seconds while something is sent, and at the stop: a power
//! cut loses the counts of the last ten seconds at most.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ledge_base::clock;
use ledge_base::durable;
use ledge_base::log_limiter::LastingFault;
use ledge_service::shutdown::Shutdown;
use serde::{Deserialize, Serialize};

use super::Egress;
use super::counters::DestinationStatistics;

/// The file in the state folder.
const COUNTS_FILE: &str = "egress.json";

/// The version of the format of [`EgressCounts`].
const SCHEMA: u32 = 1;

/// The pause between two writes of the file while something is sent.
const WRITE_INTERVAL: Duration = Duration::from_secs(10);

/// Bytes sent by this box and received in return, by destination.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EgressCounts {
    schema: u32,
    /// The time at which counting began, in RFC 3339.
    pub since: String,
    /// True if earlier counts were lost because the file was damaged.
    pub after_damage: bool,
    /// Every destination that was ever connected to or allowed.
    pub destinations: Vec<DestinationCounts>,
}

/// The counts of one destination.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DestinationCounts {
    /// `HOST:PORT`.
    pub destination: String,
    /// Its region at the time. A destination that moved is here once for each region.
    pub region: String,
    pub connections: u64,
    /// Failed attempts to connect.
    pub failures: u64,
    /// Bytes sent before encryption, by the name of their [`super::EgressContent`], former names included.
    pub sent: BTreeMap<String, u64>,
    /// Bytes received, after decryption.
    pub received: u64,
}

/// The reason why the counts cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum EgressCountsError {
    #[error("the egress counts cannot be read: {path}: {error}", path = path.display())]
    File { path: PathBuf, error: io::Error },
    #[error("the egress counts cannot be read: {path} is damaged: {reason}", path = path.display())]
    Damaged { path: PathBuf, reason: String },
}

impl EgressCounts {
    fn begin(after_damage: bool) -> Self {
        Self { schema: SCHEMA, since: clock::rfc3339(clock::unix_millis()), after_damage, destinations: Vec::new() }
    }

    /// Reads the counts in the state folder without changing anything; `None` before the first start.
    pub fn read(state: &Path) -> Result<Option<Self>, EgressCountsError> {
        let path = state.join(COUNTS_FILE);
        let content = match std::fs::read(&path) {
            Ok(content) => content,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(EgressCountsError::File { path, error }),
        };
        let damaged = |reason: String| EgressCountsError::Damaged { path: path.clone(), reason };
        Self::parse(&content).map(Some).map_err(damaged)
    }

    fn parse(content: &[u8]) -> Result<Self, String> {
        let counts: Self = serde_json::from_slice(content).map_err(|error| error.to_string())?;
        if counts.schema != SCHEMA {
            return Err(format!("its schema is {}, and this version of Ledge reads schema {SCHEMA}", counts.schema));
        }
        Ok(counts)
    }

    /// The sum of these and the counts since the start.
    fn with(&self, since_start: &[DestinationStatistics]) -> Self {
        let mut sum = self.clone();
        for of in since_start {
            let known =
                sum.destinations.iter().position(|it| it.destination == of.destination && it.region == of.region);
            let counts = match known.and_then(|at| sum.destinations.get_mut(at)) {
                Some(counts) => counts,
                None => sum.destinations.push_mut(DestinationCounts {
                    destination: of.destination.clone(),
                    region: of.region.clone(),
                    ..DestinationCounts::default()
                }),
            };
            counts.add(of);
        }
        sum.destinations.sort_by(|a, b| (&a.destination, &a.region).cmp(&(&b.destination, &b.region)));
        sum
    }
}

impl DestinationCounts {
    fn add(&mut self, of: &DestinationStatistics) {
        let add = |sum: &mut u64, count: u64| *sum = sum.saturating_add(count);
        add(&mut self.connections, of.connections);
        add(&mut self.failures, of.failures);
        add(&mut self.received, of.received);
        for (content, bytes) in of.sent {
            add(self.sent.entry(content.name().to_owned()).or_default(), bytes);
        }
    }
}

/// Keeps the counts of an [`Egress`] in the file. Clones share it.
#[derive(Debug, Clone)]
pub struct EgressCountsKeeper(Arc<EgressCountsState>);

#[derive(Debug)]
struct EgressCountsState {
    egress: Egress,
    path: PathBuf,
    /// The counts of all starts before this one.
    before: EgressCounts,
    written: Mutex<WrittenCounts>,
}

/// The content of the file, and the fault of writing it.
#[derive(Debug)]
struct WrittenCounts {
    counts: Option<EgressCounts>,
    fault: LastingFault,
}

impl EgressCountsKeeper {
    /// Continues the counts of the previous start. A damaged file is moved aside, and counting starts again at zero.
    pub fn open(state: &Path, egress: Egress) -> Self {
        let path = state.join(COUNTS_FILE);
        let (before, counts) = match EgressCounts::read(state) {
            Ok(Some(counts)) => (counts.clone(), Some(counts)),
            Ok(None) => (EgressCounts::begin(false), None),
            Err(error) => {
                let aside = state.join(format!("{COUNTS_FILE}.damaged"));
                tracing::error!(
                    %error,
                    aside = %aside.display(),
                    "ALARM: the egress counts are damaged: the file is moved aside, and counting starts again at zero"
                );
                if let Err(error) = durable::rename(&path, &aside) {
                    tracing::error!(
                        %error,
                        path = %path.display(),
                        "the damaged egress counts cannot be moved aside: the next write replaces them"
                    );
                }
                (EgressCounts::begin(true), None)
            }
        };
        let written = Mutex::new(WrittenCounts { counts, fault: LastingFault::default() });
        Self(Arc::new(EgressCountsState { egress, path, before, written }))
    }

    /// Writes the file every ten seconds until the stop.
    pub async fn run(self, shutdown: Shutdown) {
        let mut ticks = tokio::time::interval(WRITE_INTERVAL);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                _ = ticks.tick() => {}
                () = shutdown.requested() => return,
            }
            let keeper = self.clone();
            let _ = tokio::task::spawn_blocking(move || keeper.write()).await;
        }
    }

    /// The counts of all starts, up to now.
    pub fn totals(&self) -> EgressCounts {
        self.0.before.with(&self.0.egress.statistics())
    }

    /// Writes the file if a count has changed. Blocks on the disk.
    pub fn write(&self) {
        let mut written = self.written();
        let now = self.totals();
        if written.counts.as_ref() == Some(&now) {
            return;
        }
        // Only texts and numbers, so serialization cannot fail.
        let content = serde_json::to_vec_pretty(&now).unwrap_or_default();
        match durable::replace(&self.0.path, &content) {
            Ok(()) => {
                written.counts = Some(now);
                if written.fault.end() {
                    tracing::info!("the egress counts can be written again");
                }
            }
            Err(error) if written.fault.is_to_be_logged(Instant::now()) => {
                let path = self.0.path.display();
                tracing::warn!(%error, %path, "the egress counts cannot be written; it is tried again every ten seconds");
            }
            Err(_) => {}
        }
    }

    fn written(&self) -> MutexGuard<'_, WrittenCounts> {
        self.0.written.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Reads the file of the counts for the fuzzers; true when it is valid. Checks that writing and reading it again
/// changes nothing, and that adding to it drops no destination. The folder `fuzz/` and `tests/it/fuzz.rs` call it.
///
/// # Panics
/// When an invariant does not hold.
#[cfg(any(test, feature = "fuzzing"))]
pub fn fuzz_egress_counts(data: &[u8]) -> bool {
    let Ok(counts) = EgressCounts::parse(data) else { return false };
    let written = serde_json::to_vec_pretty(&counts).unwrap_or_default();
    assert_eq!(EgressCounts::parse(&written).as_ref(), Ok(&counts));
    let again = counts.with(&[]).destinations;
    assert!(counts.destinations.iter().all(|known| again.contains(known)) && again.len() == counts.destinations.len());
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{EgressConfig, EgressContent, HostPort};
    use ledge_base::toml_check;
    use ledge_service::audit_event::AuditSink;

    fn egress() -> Egress {
        let text = "[[allow]]\nhost = 'a:1'\nregion = 'eu'\nsend = ['answers']";
        Egress::new(&toml_check::parse::<EgressConfig>("f", text).unwrap(), AuditSink::to_nowhere())
    }

    #[test]
    fn counts_that_cannot_be_written_are_logged_once_until_they_can() {
        let state = tempfile::tempdir().unwrap();
        let folder = state.path().join("state");
        let keeper = EgressCountsKeeper::open(&folder, egress());
        keeper.write();
        assert!(!keeper.written().fault.is_to_be_logged(Instant::now()), "the first attempt was logged");
        std::fs::create_dir(&folder).unwrap();
        keeper.write();
        assert!(!keeper.written().fault.end() && folder.join(COUNTS_FILE).is_file());
    }

    /// A start that sends `bytes` bytes.
    fn start(state: &Path, bytes: usize) -> EgressCounts {
        let egress = egress();
        let keeper = EgressCountsKeeper::open(state, egress.clone());
        let counters = egress.counters(&"a:1".parse::<HostPort>().unwrap(), "eu");
        counters.count_sent(EgressContent::Answer, bytes);
        counters.count_received(1);
        keeper.write();
        EgressCounts::read(state).unwrap().unwrap()
    }

    #[test]
    fn counts_go_on_over_starts() {
        let state = tempfile::tempdir().unwrap();
        assert_eq!(EgressCounts::read(state.path()).unwrap(), None);
        let first = start(state.path(), 100);
        let second = start(state.path(), 23);
        assert!(first.since == second.since && !second.after_damage);
        let [of] = second.destinations.as_slice() else { panic!("{second:?}") };
        assert_eq!((of.sent["answers"], of.sent["reports"], of.received), (123, 0, 2));
    }

    #[test]
    fn a_damaged_file_is_set_aside_and_the_counts_say_so() {
        let state = tempfile::tempdir().unwrap();
        start(state.path(), 100);
        let path = state.path().join(COUNTS_FILE);
        let whole = std::fs::read(&path).unwrap();
        for damage in [&whole[..whole.len() / 2], b"", b"{}", b"[7]"] {
            durable::replace(&path, damage).unwrap();
            assert!(matches!(EgressCounts::read(state.path()), Err(EgressCountsError::Damaged { .. })));
            let anew = start(state.path(), 7);
            assert!(anew.after_damage && anew.destinations[0].sent["answers"] == 7);
            assert_eq!(std::fs::read(state.path().join("egress.json.damaged")).unwrap(), damage);
            assert!(start(state.path(), 1).after_damage, "until the end of its days");
        }
    }

    #[test]
    fn where_a_destination_was_is_not_forgotten_when_it_moves() {
        let state = tempfile::tempdir().unwrap();
        start(state.path(), 100);
        let counts = EgressCounts::read(state.path()).unwrap().unwrap();
        let moved = DestinationStatistics { region: "us".into(), ..egress().statistics().remove(0) };
        let regions: Vec<_> = counts.with(&[moved]).destinations.into_iter().map(|of| of.region).collect();
        assert_eq!(regions, ["eu", "us"]);
    }

    #[test]
    fn what_has_not_changed_is_not_written() {
        let state = tempfile::tempdir().unwrap();
        let keeper = EgressCountsKeeper::open(state.path(), egress());
        keeper.write();
        let path = state.path().join(COUNTS_FILE);
        std::fs::remove_file(&path).unwrap();
        keeper.write();
        assert!(!path.exists());
    }
}
