//! Live copies: each record is sent to others at once, for those who watch (a SIEM).
//!
//! They may lose records, and say so: what counts is the log itself, and its copy on the platform. A copy that is slow or
//! cut off never holds up the writer. It keeps the last records for a while; what it loses is counted, and the sequence
//! numbers that it carries have a hole there. The last records of a run may be among them.

mod otlp;
mod syslog;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use ledge_base::names::DeviceName;
use ledge_egress::Egress;
use ledge_service::shutdown::Shutdown;
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::{RecvError, TryRecvError};
use tokio::time::{Instant, timeout_at};

use super::config::AuditConfig;
use super::status::{AuditState, CopyStatus, LiveRecord};

/// How many records a copy keeps while it cannot send any.
const BACKLOG: usize = 1000;

/// The pauses between attempts grow from here
const FIRST_PAUSE: Duration = Duration::from_secs(1);

/// to here.
const LONGEST_PAUSE: Duration = Duration::from_mins(5);

/// How many records go together at most.
const AT_ONCE: usize = 100;

/// How long the first of them waits for others.
const COMPANY: Duration = Duration::from_secs(1);

/// How long the last records may take when the daemon stops.
const LAST: Duration = Duration::from_secs(1);

/// Starts the copies that are configured. They get the records from now on.
pub fn spawn(config: &AuditConfig, device: &DeviceName, egress: &Egress, state: &AuditState, shutdown: &Shutdown) {
    let (syslog, otlp) = (&config.syslog, &config.otlp);
    if let Some(to) = &syslog.to {
        let feed = Feed::new(state, "syslog", to.to_string());
        let tls = syslog.encrypted.then(|| syslog.tls.settings());
        let copy = syslog::Syslog::new(to.clone(), tls, device, egress.clone());
        shutdown.spawn(copy.run(feed, shutdown.clone()));
    }
    if let Some(url) = &otlp.url {
        let feed = Feed::new(state, "otlp", url.to_string());
        let copy = otlp::Otlp::new(url, otlp.tls.settings(), otlp.token_file.clone(), device, egress.clone());
        shutdown.spawn(copy.run(feed, shutdown.clone()));
    }
}

/// What waits to be sent by one copy, and what is told of that copy.
struct Feed {
    records: Receiver<Arc<LiveRecord>>,
    backlog: VecDeque<Arc<LiveRecord>>,
    state: AuditState,
    name: &'static str,
    to: String,
    /// Whether it was told that something is wrong.
    is_failing: bool,
}

impl Feed {
    fn new(state: &AuditState, name: &'static str, to: String) -> Self {
        state.update(|status| {
            status.copies.retain(|copy| copy.name != name);
            status.copies.push(CopyStatus { name, to: to.clone(), ..CopyStatus::default() });
        });
        let (records, state) = (state.live(), state.clone());
        Self { records, backlog: VecDeque::new(), state, name, to, is_failing: false }
    }

    /// The oldest records that wait, at most `most`.
    fn waiting(&self, most: usize) -> Vec<Arc<LiveRecord>> {
        self.backlog.iter().take(most).cloned().collect()
    }

    /// Takes up what has come.
    fn take_up(&mut self) {
        loop {
            match self.records.try_recv() {
                Ok(record) => self.push(record),
                Err(TryRecvError::Lagged(lost)) => self.lose(lost),
                Err(TryRecvError::Empty | TryRecvError::Closed) => return,
            }
        }
    }

    /// Waits for the next record, and takes up what has come with it. Cancel-safe.
    async fn more(&mut self) {
        match self.records.recv().await {
            Ok(record) => self.push(record),
            Err(RecvError::Lagged(lost)) => self.lose(lost),
            // Nobody sends any more: there is nothing to wait for.
            Err(RecvError::Closed) => std::future::pending().await,
        }
        self.take_up();
    }

    /// Takes up what comes until `until`. Cancel-safe.
    async fn gather(&mut self, until: Instant) {
        while timeout_at(until, self.more()).await.is_ok() {}
    }

    /// Waits for a record, and for others that can go with it: a second, or `own_company` while there are only those of
    /// which `is_own` says that sending them makes the next. Cancel-safe.
    async fn gather_company(&mut self, own_company: Duration, is_own: impl Fn(&LiveRecord) -> bool) {
        while self.backlog.is_empty() {
            self.more().await;
        }
        let first = Instant::now();
        while self.backlog.len() < AT_ONCE && timeout_at(first + COMPANY, self.more()).await.is_ok() {}
        while self.backlog.iter().all(|record| is_own(record)) {
            if timeout_at(first + own_company, self.more()).await.is_err() {
                return;
            }
        }
    }

    fn push(&mut self, record: Arc<LiveRecord>) {
        self.backlog.push_back(record);
        if self.backlog.len() > BACKLOG {
            self.backlog.pop_front();
            self.lose(1);
        }
    }

    /// The oldest were sent, but for some that the other side did not take.
    fn sent(&mut self, records: usize, refused: u64) {
        self.backlog.drain(..records.min(self.backlog.len()));
        let sent = (records as u64).saturating_sub(refused);
        self.update(|copy| {
            copy.sent += sent;
            copy.lost += refused;
        });
    }

    fn lose(&self, records: u64) {
        self.update(|copy| copy.lost += records);
    }

    /// It does not go on. Told once, until it does again.
    fn failed(&mut self, reason: &str) {
        let (name, to) = (self.name, &self.to);
        if !self.is_failing {
            tracing::warn!(copy = name, %to, reason, "the live copy of the audit log does not go on; the log itself does");
        }
        self.is_failing = true;
        self.update(|copy| copy.error = Some(reason.to_owned()));
    }

    /// It goes on.
    fn is_well(&mut self) {
        if self.is_failing {
            let (name, to) = (self.name, &self.to);
            let lost = self.status().map_or(0, |copy| copy.lost);
            tracing::info!(copy = name, %to, lost, "the live copy of the audit log goes on");
            self.is_failing = false;
            self.update(|copy| copy.error = None);
        }
    }

    fn status(&self) -> Option<CopyStatus> {
        self.state.status().copies.into_iter().find(|copy| copy.name == self.name)
    }

    fn update(&self, change: impl FnOnce(&mut CopyStatus)) {
        self.state.update(|status| {
            if let Some(copy) = status.copies.iter_mut().find(|copy| copy.name == self.name) {
                change(copy);
            }
        });
    }
}

#[cfg(test)]
mod tests;
