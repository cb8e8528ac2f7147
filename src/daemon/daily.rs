//! The daily records: the traffic that left the box, at each start and after each midnight in UTC; and the end of data
//! by `[retention]`, once a day.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use ledge_base::clock::{self, ClockComparison, STEADY_TOLERANCE};
use ledge_egress::EgressCountsKeeper;
use ledge_features::FeatureStore;
use ledge_history::History;
use ledge_inbox::retention::{self, RemovedFiles};
use ledge_service::audit_event::{AuditEvent, AuditSink, FixedWord};
use ledge_service::off_thread::blocking;
use ledge_service::shutdown::Shutdown;

use crate::config::Config;

/// The longest sleep. A clock that is set meanwhile is noticed after it.
const LOOK_INTERVAL: Duration = Duration::from_hours(1);

const DAY_MS: u64 = 86_400_000;

/// Records and removes once a day.
pub struct DailyTask {
    config: Config,
    counts: EgressCountsKeeper,
    features: FeatureStore,
    history: History,
    audit: AuditSink,
}

/// The state of the task.
struct DailyState {
    /// The days, counted from 1970, for which the traffic is recorded and retention enforced.
    counted_day: Option<u64>,
    enforced_day: Option<u64>,
    /// Rows of the feature store that had expired at the last pass.
    purged: u64,
    /// Since the last look.
    clock: ClockComparison,
}

impl DailyTask {
    pub fn new(
        config: &Config,
        counts: &EgressCountsKeeper,
        features: &FeatureStore,
        history: History,
        audit: &AuditSink,
    ) -> Self {
        let (config, counts, features) = (config.clone(), counts.clone(), features.clone());
        Self { config, counts, features, history, audit: audit.clone() }
    }

    /// Runs until the stop.
    pub async fn run(self, shutdown: Shutdown) {
        let mut state = DailyState {
            counted_day: None,
            enforced_day: None,
            purged: 0,
            clock: ClockComparison::new(Instant::now(), clock::unix_millis()),
        };
        loop {
            let now_ms = clock::unix_millis();
            self.look(&mut state, now_ms).await;
            // A second after midnight, so that the new day has begun by any rounding.
            let midnight = Duration::from_millis(DAY_MS - now_ms % DAY_MS + 1000);
            tokio::select! {
                () = tokio::time::sleep(midnight.min(LOOK_INTERVAL)) => {}
                () = shutdown.requested() => return,
            }
        }
    }

    async fn look(&self, state: &mut DailyState, now_ms: u64) {
        let today = now_ms / DAY_MS;
        if state.counted_day != Some(today) {
            state.counted_day = Some(today);
            self.record_egress();
        }

        // A clock that jumped since the last look, and the one that a start finds, are not trusted with a removal.
        let now = Instant::now();
        let is_steady = state.clock.steady_for(now, now_ms).is_some_and(|time| time >= STEADY_TOLERANCE);
        state.clock = ClockComparison::new(now, now_ms);
        if is_steady && clock::FLOOR.is_plausible(now_ms) && state.enforced_day != Some(today) {
            state.enforced_day = Some(today);
            self.enforce(state, now_ms).await;
        }
    }

    /// Records the totals of each destination that got anything. Those without news too: a report takes the bytes
    /// between two records for those of the time between them.
    fn record_egress(&self) {
        let counts = self.counts.totals();
        let since_ms = clock::parse_micros(&counts.since).and_then(|us| u64::try_from(us / 1000).ok()).unwrap_or(0);
        for of in counts.destinations {
            if of.sent.values().all(|bytes| *bytes == 0) {
                continue;
            }
            // Names of contents are fixed words, also the former ones in the file; others would not be ours.
            let word = |name: &String| serde_json::from_value::<FixedWord>(name.as_str().into()).ok();
            let sent = of.sent.iter().filter(|(_, bytes)| **bytes > 0);
            let sent = sent.filter_map(|(name, bytes)| Some((word(name)?, *bytes))).collect();
            self.audit.record_own(AuditEvent::EgressCounted {
                destination: of.destination,
                region: of.region,
                since_ms,
                connections: of.connections,
                sent,
                received: of.received,
            });
        }
    }

    /// Removes what `[retention]` ends, and records how much it was.
    async fn enforce(&self, state: &mut DailyState, now_ms: u64) {
        let mut removed: BTreeMap<FixedWord, u64> = BTreeMap::new();
        let mut failed = 0;
        if let Some(limit_ms) = self.config.retention.inbox_limit_ms(now_ms) {
            let inboxes = self.config.inbox.0.clone();
            let files = blocking(move || {
                inboxes.iter().map(|inbox| retention::remove_processed_before(inbox, limit_ms)).fold(
                    RemovedFiles::default(),
                    |sum, of| RemovedFiles { removed: sum.removed + of.removed, failed: sum.failed + of.failed },
                )
            });
            let files = files.await;
            removed.insert("inbox_files".into(), files.removed);
            failed += files.failed;
        }

        let (history, limit_ms) = (self.history.clone(), self.config.retention.history_limit_ms(now_ms));
        let (forgotten, unwritten) = blocking(move || history.forget_before(limit_ms)).await;
        if forgotten > 0 {
            removed.insert("history".into(), forgotten);
        }
        failed += unwritten;

        // The store itself removes rows after the ttl of their view.
        let purged = self.features.statistics().map_or(0, |statistics| statistics.purged);
        let rows = purged.saturating_sub(std::mem::replace(&mut state.purged, purged));
        if rows > 0 {
            removed.insert("feature_rows".into(), rows);
        }
        if !removed.is_empty() || failed > 0 {
            tracing::debug!(?removed, failed, "retention was enforced");
            self.audit.record_own(AuditEvent::RetentionEnforced { removed, failed });
        }
    }
}
