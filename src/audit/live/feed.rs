//! The records that wait to be sent by one live copy, and the status of that copy.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::{RecvError, TryRecvError};
use tokio::time::{Instant, timeout_at};

use crate::status::{AuditState, LiveCopyRecord, LiveCopyStatus};

/// Number of records that a copy keeps while it cannot send any.
const BACKLOG_RECORDS_MAX: usize = 1000;

/// The most records that are sent together.
pub(super) const BATCH_RECORDS_MAX: usize = 100;

/// Time that the first record of a batch waits for others.
const BATCH_DELAY: Duration = Duration::from_secs(1);

/// The pauses between attempts grow from this one to [`RETRY_PAUSE_MAX`].
pub(super) const RETRY_PAUSE_MIN: Duration = Duration::from_secs(1);

pub(super) const RETRY_PAUSE_MAX: Duration = Duration::from_mins(5);

/// Limit for sending the last records when the daemon stops.
pub(super) const FINAL_SEND_TIMEOUT: Duration = Duration::from_secs(1);

/// The queue of one live copy.
pub(super) struct LiveCopyQueue {
    records: Receiver<Arc<LiveCopyRecord>>,
    pub(super) backlog: VecDeque<Arc<LiveCopyRecord>>,
    state: AuditState,
    name: &'static str,
    to: String,
    /// Set after a logged failure, until the next success.
    is_failing: bool,
}

impl LiveCopyQueue {
    pub(super) fn new(state: &AuditState, name: &'static str, to: String) -> Self {
        state.update(|status| {
            status.copies.retain(|copy| copy.name != name);
            status.copies.push(LiveCopyStatus { name, to: to.clone(), ..LiveCopyStatus::default() });
        });
        let (records, state) = (state.live(), state.clone());
        Self { records, backlog: VecDeque::new(), state, name, to, is_failing: false }
    }

    /// The oldest records that wait, at most [`BATCH_RECORDS_MAX`].
    pub(super) fn oldest(&self) -> Vec<Arc<LiveCopyRecord>> {
        self.backlog.iter().take(BATCH_RECORDS_MAX).cloned().collect()
    }

    /// Takes the records that have arrived.
    pub(super) fn receive_available(&mut self) {
        loop {
            match self.records.try_recv() {
                Ok(record) => self.push(record),
                Err(TryRecvError::Lagged(lost)) => self.count_lost(lost),
                Err(TryRecvError::Empty | TryRecvError::Closed) => return,
            }
        }
    }

    /// Waits for the next record, and takes those that have arrived with it. Cancel-safe.
    pub(super) async fn receive(&mut self) {
        match self.records.recv().await {
            Ok(record) => self.push(record),
            Err(RecvError::Lagged(lost)) => self.count_lost(lost),
            // The writer has ended: no record follows.
            Err(RecvError::Closed) => std::future::pending().await,
        }
        self.receive_available();
    }

    /// Takes records until `until`. Cancel-safe.
    pub(super) async fn receive_until(&mut self, until: Instant) {
        while timeout_at(until, self.receive()).await.is_ok() {}
    }

    /// Waits for a batch: a record, and others that arrive within [`BATCH_DELAY`]. A batch in which `is_own` holds for
    /// each record is one that sending it would cause again: it waits for another record, up to `own_delay`.
    /// Cancel-safe.
    pub(super) async fn receive_batch(&mut self, own_delay: Duration, is_own: impl Fn(&LiveCopyRecord) -> bool) {
        while self.backlog.is_empty() {
            self.receive().await;
        }
        let first = Instant::now();
        while self.backlog.len() < BATCH_RECORDS_MAX && timeout_at(first + BATCH_DELAY, self.receive()).await.is_ok() {}
        while self.backlog.iter().all(|record| is_own(record)) {
            if timeout_at(first + own_delay, self.receive()).await.is_err() {
                return;
            }
        }
    }

    fn push(&mut self, record: Arc<LiveCopyRecord>) {
        self.backlog.push_back(record);
        if self.backlog.len() > BACKLOG_RECORDS_MAX {
            self.backlog.pop_front();
            self.count_lost(1);
        }
    }

    /// Removes the oldest records, which were sent. The other side refused some of them.
    pub(super) fn remove_sent(&mut self, records: usize, refused: u64) {
        self.backlog.drain(..records.min(self.backlog.len()));
        let sent = (records as u64).saturating_sub(refused);
        self.update(|copy| {
            copy.sent += sent;
            copy.lost += refused;
        });
    }

    fn count_lost(&self, records: u64) {
        self.update(|copy| copy.lost += records);
    }

    /// Reports a failure; only the first one is logged, until there is a success.
    pub(super) fn report_failure(&mut self, reason: &str) {
        let (name, to) = (self.name, &self.to);
        if !self.is_failing {
            tracing::warn!(
                copy = name, %to, reason,
                "cannot send records to the live copy of the audit log, trying again; the log itself is not affected"
            );
        }
        self.is_failing = true;
        self.update(|copy| copy.error = Some(reason.to_owned()));
    }

    /// Reports a success after a failure.
    pub(super) fn report_success(&mut self) {
        if self.is_failing {
            let (name, to) = (self.name, &self.to);
            let lost = self.status().map_or(0, |copy| copy.lost);
            tracing::info!(copy = name, %to, lost, "the live copy of the audit log takes records again");
            self.is_failing = false;
            self.update(|copy| copy.error = None);
        }
    }

    fn status(&self) -> Option<LiveCopyStatus> {
        self.state.status().copies.into_iter().find(|copy| copy.name == self.name)
    }

    fn update(&self, change: impl FnOnce(&mut LiveCopyStatus)) {
        self.state.update(|status| {
            if let Some(copy) = status.copies.iter_mut().find(|copy| copy.name == self.name) {
                change(copy);
            }
        });
    }
}
