//! One file from the repository into the update store: bounded, resumed over days, and taken only if its hash is the
//! signed one.
//!
//! Only the hash decides. Ranges, lengths and validators of a server save bytes, or end a transfer early, and are not
//! trusted. `If-Range` is not sent: some servers ignore it.

mod error;
mod rate;
#[cfg(test)]
mod tests;

use std::ops::ControlFlow;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Buf;
use ledge_service::off_thread::blocking;
use tokio::time::{Instant, sleep, timeout};

pub use self::error::DownloadError;
use self::rate::{DownloadBucket, MinimumRate};
use super::config::UpdatesConfig;
use super::source::{RepositorySource, SourceError, TargetDownload};
use super::store::part::PartialDownload;
use super::store::{StoreError, UpdateStore};
use super::trust::TufTarget;

/// Longest time between two calls of `progress`, which can cancel the transfer.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(1);

/// Limits of downloads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DownloadLimits {
    /// Highest rate, in bytes a second; 0 is no limit.
    pub max_bytes_per_s: u64,
    /// Bytes that stay free on the disk.
    pub min_free_bytes: u64,
    /// The time after which a silent server is given up for now.
    pub stall: Duration,
    /// The least rate over a minute, in bytes a second; a slower server is given up for now.
    pub min_bytes_per_s: u64,
}

impl DownloadLimits {
    /// Makes the limits of `[updates]`; a server may be silent for a minute, and must send 100 bytes a second.
    pub fn new(config: &UpdatesConfig) -> Self {
        Self {
            max_bytes_per_s: config.max_bytes_per_s,
            min_free_bytes: config.min_free_mb << 20,
            stall: Duration::from_mins(1),
            min_bytes_per_s: 100,
        }
    }
}

/// A failed fetch, with its cost.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct FetchFailure {
    pub error: DownloadError,
    /// Bytes, of this or earlier attempts, that were thrown away.
    pub wasted: u64,
}

/// Fetches the file of `target` into the store, unless it is there.
///
/// `progress` is called with the bytes since its last call, once a second at least, and can end the transfer. In any
/// case stored bytes are not fetched again: after an error or a cancellation none, after `kill -9` or a power cut at
/// most the last MiB. Bytes that do not match the signed hash are thrown away.
pub async fn fetch(
    store: &UpdateStore,
    source: &RepositorySource,
    target: &TufTarget,
    limits: &DownloadLimits,
    progress: impl FnMut(u64) -> ControlFlow<()>,
) -> Result<(), FetchFailure> {
    let (begun, bucket) = (Instant::now(), DownloadBucket::new(limits.max_bytes_per_s));
    let mut transfer = Transfer { target, limits, progress, begun, bucket, wasted: 0 };
    transfer.run_to_end(store, source).await.map_err(|error| FetchFailure { error, wasted: transfer.wasted })
}

async fn has(store: &UpdateStore, target: &TufTarget) -> bool {
    let (store, sha256) = (store.clone(), target.sha256.clone());
    blocking(move || store.has(&sha256)).await
}

/// The end of a transfer.
enum TransferEnd {
    /// All signed bytes are here.
    Whole,
    TooLong,
}

/// A file that is being fetched.
struct Transfer<'a, P> {
    target: &'a TufTarget,
    limits: &'a DownloadLimits,
    progress: P,
    begun: Instant,
    bucket: DownloadBucket,
    wasted: u64,
}

impl<P: FnMut(u64) -> ControlFlow<()>> Transfer<'_, P> {
    async fn run_to_end(&mut self, store: &UpdateStore, source: &RepositorySource) -> Result<(), DownloadError> {
        if has(store, self.target).await {
            return Ok(());
        }
        loop {
            let part = DownloadWriter::open(store, self.target).await?;
            // A cancelled transfer may have finished it since.
            if has(store, self.target).await {
                return part.with(PartialDownload::remove).await;
            }
            let goes_on = part.length() > 0;

            let wrong = match self.run(store, source, &part).await {
                Ok(TransferEnd::Whole) => !part.with(PartialDownload::finish).await?,
                Ok(TransferEnd::TooLong) => true,
                Err(error) => {
                    // When this fails as well, some bytes are fetched again.
                    let _ = part.with(PartialDownload::settle).await;
                    return Err(error);
                }
            };
            if !wrong {
                return Ok(());
            }

            self.wasted = self.wasted.saturating_add(part.length());
            part.with(PartialDownload::remove).await?;
            // Try again at once only when the transfer continued bytes that an earlier server, or a failing disk, may
            // have damaged. A file that is wrong from its first byte on is wrong on the server, which needs time to be
            // repaired.
            if !goes_on {
                return Err(DownloadError::Content { sha256: self.target.sha256.clone() });
            }
        }
    }

    async fn run(
        &mut self,
        store: &UpdateStore,
        source: &RepositorySource,
        part: &DownloadWriter,
    ) -> Result<TransferEnd, DownloadError> {
        let (signed, from) = (self.target.length, part.length());
        if from == signed {
            return Ok(TransferEnd::Whole);
        }
        let (needed, free) = ((signed - from).saturating_add(self.limits.min_free_bytes), store.free_bytes()?);
        if free < needed {
            return Err(DownloadError::Room { needed, free });
        }
        let mut rate = MinimumRate::new(self.begun.elapsed());
        loop {
            let before = part.length();
            match self.ask(source, part, &mut rate).await? {
                Some(ended) => return Ok(ended),
                // The server may send a large file in slices: ask for the next.
                None if part.length() > before => {}
                None => return Err(DownloadError::Short { length: part.length(), signed }),
            }
        }
    }

    /// Makes one request. `None`: the response ended before the file did.
    async fn ask(
        &mut self,
        source: &RepositorySource,
        part: &DownloadWriter,
        rate: &mut MinimumRate,
    ) -> Result<Option<TransferEnd>, DownloadError> {
        let (signed, from) = (self.target.length, part.length());
        let mut arrival = self.with_stall_timeout(source.target(&self.target.location, from)).await?;

        // Without ranges the file comes from its first byte on. Stored bytes stay and are not written again: a transfer
        // that breaks off early then loses nothing, and the hash is over the bytes on the disk.
        let mut known = match arrival.start {
            0 => from,
            start if start == from => 0,
            got => return Err(DownloadError::Range { asked: from, got }),
        };

        if let Some(end) = arrival.length.map(|length| length.saturating_add(arrival.start))
            && (end > signed || (end < signed && arrival.start == 0))
        {
            return Err(DownloadError::Length { length: end, signed });
        }

        while part.length() < signed {
            let Some(mut chunk) = self.with_stall_timeout(arrival.chunk()).await? else { return Ok(None) };
            let came = chunk.len() as u64;
            let again = known.min(came);
            chunk.advance(usize::try_from(again).unwrap_or(chunk.len()));
            known -= again;
            self.wasted = self.wasted.saturating_add(again);
            if chunk.len() as u64 > signed - part.length() {
                self.wasted = self.wasted.saturating_add(chunk.len() as u64);
                self.report_progress(came)?;
                return Ok(Some(TransferEnd::TooLong));
            }

            part.with(move |part| part.append(&chunk)).await?;
            self.report_progress(came)?;

            let least = self.limits.min_bytes_per_s;
            if let Some(bytes_per_s) = rate.slower_than(least, came, self.begun.elapsed()) {
                return Err(DownloadError::Slow { bytes_per_s, least });
            }
            rate.excuse(self.limit_rate(came).await?);
        }

        // A given length was checked, and the response ends there.
        let more = arrival.length.is_none() && self.has_more(&mut arrival).await?;
        Ok(Some(if more { TransferEnd::TooLong } else { TransferEnd::Whole }))
    }

    /// Returns true if any bytes follow the signed ones. Errors in the rest of the transfer do not matter.
    async fn has_more(&mut self, arrival: &mut TargetDownload) -> Result<bool, DownloadError> {
        match self.with_stall_timeout(arrival.chunk()).await {
            Ok(Some(chunk)) => {
                self.wasted = self.wasted.saturating_add(chunk.len() as u64);
                self.report_progress(chunk.len() as u64)?;
                Ok(true)
            }
            Err(DownloadError::Cancelled) => Err(DownloadError::Cancelled),
            _ => Ok(false),
        }
    }

    /// Waits for the source, up to the longest silence.
    async fn with_stall_timeout<T>(
        &mut self,
        work: impl Future<Output = Result<T, SourceError>>,
    ) -> Result<T, DownloadError> {
        let (begun, mut work) = (Instant::now(), pin!(work));
        loop {
            let left = self.limits.stall.saturating_sub(begun.elapsed());
            if left.is_zero() {
                return Err(DownloadError::Stalled { seconds: self.limits.stall.as_secs() });
            }
            match timeout(left.min(PROGRESS_INTERVAL), &mut work).await {
                Ok(done) => return done.map_err(DownloadError::Source),
                Err(_) => self.report_progress(0)?,
            }
        }
    }

    /// Waits to keep within the bandwidth, and returns the time waited.
    async fn limit_rate(&mut self, bytes: u64) -> Result<Duration, DownloadError> {
        let pause = self.bucket.take(bytes, self.begun.elapsed());
        let until = Instant::now() + pause;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(pause);
            }
            sleep(left.min(PROGRESS_INTERVAL)).await;
            self.report_progress(0)?;
        }
    }

    fn report_progress(&mut self, bytes: u64) -> Result<(), DownloadError> {
        match (self.progress)(bytes) {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(()) => Err(DownloadError::Cancelled),
        }
    }
}

/// A part, read and written on threads that may wait for the disk. After a drop, a write under way still ends.
struct DownloadWriter(Arc<Mutex<PartialDownload>>);

impl DownloadWriter {
    async fn open(store: &UpdateStore, target: &TufTarget) -> Result<Self, DownloadError> {
        let (store, sha256, length) = (store.clone(), target.sha256.clone(), target.length);
        // Settings are read before there is a key, and runtimes are not secret.
        let is_model = target.path.starts_with("models/");
        let part =
            blocking(move || if is_model { store.sealed_part(&sha256, length) } else { store.part(&sha256, length) });
        let part = part.await?;
        Ok(Self(Arc::new(Mutex::new(part))))
    }

    async fn with<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut PartialDownload) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, DownloadError> {
        let part = self.0.clone();
        Ok(blocking(move || work(&mut part.lock().unwrap_or_else(PoisonError::into_inner))).await?)
    }

    fn length(&self) -> u64 {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).length()
    }
}
