//! One file from the repository into the update store: bounded, resumed over days, and taken only if it is what was signed.
//!
//! The hash alone decides. What a server says of ranges, lengths and validators saves bytes, or ends a transfer early; no
//! word of it is believed. `If-Range` is not sent: some servers ignore it.

mod error;
mod pace;
#[cfg(test)]
mod tests;

use ledge_service::off_thread::blocking;
use std::ops::ControlFlow;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Buf;
use tokio::time::{Instant, sleep, timeout};

pub use self::error::DownloadError;
use self::pace::{Bucket, Pace};
use super::config::UpdatesConfig;
use super::source::{Arrival, Source, SourceError};
use super::store::part::Part;
use super::store::{BlobStore, StoreError};
use super::trust::Target;

/// Whoever asked for the file can cancel so often, whatever is waited for.
const LOOK_UP: Duration = Duration::from_secs(1);

/// What downloads may take.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DownloadLimits {
    /// The most bytes a second; 0 is no limit.
    pub max_bytes_per_s: u64,
    /// What stays free on the disk.
    pub min_free_bytes: u64,
    /// A server that is silent for so long is given up for now.
    pub stall: Duration,
    /// One that is slower than this over a minute, too.
    pub min_bytes_per_s: u64,
}

impl DownloadLimits {
    /// Those of `[updates]`; a server may be silent for a minute, and must bring 100 bytes a second.
    pub fn new(config: &UpdatesConfig) -> Self {
        Self {
            max_bytes_per_s: config.max_bytes_per_s,
            min_free_bytes: config.min_free_mb << 20,
            stall: Duration::from_mins(1),
            min_bytes_per_s: 100,
        }
    }
}

/// Why a file is not here, and what that cost.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct Failed {
    pub error: DownloadError,
    /// Bytes that came, now or in earlier attempts, and were thrown away.
    pub wasted: u64,
}

/// Brings the file of `target` into the store, unless it is there.
///
/// `progress` hears of the bytes that came since it last did, once a second at least, and can end the transfer. Whatever
/// ends it, the bytes that are here are not fetched again: after an error or a cancellation none, after `kill -9` or a power
/// cut all but the last MiB. Bytes that are not what was signed are thrown away.
pub async fn fetch(
    store: &BlobStore,
    source: &Source,
    target: &Target,
    limits: &DownloadLimits,
    progress: impl FnMut(u64) -> ControlFlow<()>,
) -> Result<(), Failed> {
    let (begun, bucket) = (Instant::now(), Bucket::new(limits.max_bytes_per_s));
    let mut transfer = Transfer { target, limits, progress, begun, bucket, wasted: 0 };
    transfer.run_to_end(store, source).await.map_err(|error| Failed { error, wasted: transfer.wasted })
}

async fn has(store: &BlobStore, target: &Target) -> bool {
    let (store, sha256) = (store.clone(), target.sha256.clone());
    blocking(move || store.has(&sha256)).await
}

/// How a transfer came to its end.
enum Ended {
    /// As many bytes are here as were signed.
    Whole,
    TooLong,
}

/// A file on its way.
struct Transfer<'a, P> {
    target: &'a Target,
    limits: &'a DownloadLimits,
    progress: P,
    begun: Instant,
    bucket: Bucket,
    wasted: u64,
}

impl<P: FnMut(u64) -> ControlFlow<()>> Transfer<'_, P> {
    async fn run_to_end(&mut self, store: &BlobStore, source: &Source) -> Result<(), DownloadError> {
        if has(store, self.target).await {
            return Ok(());
        }
        loop {
            let part = Writer::open(store, self.target).await?;
            // Who was cancelled in the middle may have finished it since.
            if has(store, self.target).await {
                return part.with(Part::remove).await;
            }
            let goes_on = part.length() > 0;
            let wrong = match self.run(store, source, &part).await {
                Ok(Ended::Whole) => !part.with(Part::finish).await?,
                Ok(Ended::TooLong) => true,
                Err(error) => {
                    // When this fails as well, some bytes come again.
                    let _ = part.with(Part::settle).await;
                    return Err(error);
                }
            };
            if !wrong {
                return Ok(());
            }
            self.wasted = self.wasted.saturating_add(part.length());
            part.with(Part::remove).await?;
            // Once more at once only when it had gone on from bytes that an earlier server, or a dying disk, may have got
            // wrong. What is wrong from its first byte on is wrong at the server, which needs time to mend it.
            if !goes_on {
                return Err(DownloadError::Content { sha256: self.target.sha256.clone() });
            }
        }
    }

    async fn run(&mut self, store: &BlobStore, source: &Source, part: &Writer) -> Result<Ended, DownloadError> {
        let (signed, from) = (self.target.length, part.length());
        if from == signed {
            return Ok(Ended::Whole);
        }
        let (needed, free) = ((signed - from).saturating_add(self.limits.min_free_bytes), store.free_bytes()?);
        if free < needed {
            return Err(DownloadError::Room { needed, free });
        }
        let mut pace = Pace::new(self.begun.elapsed());
        loop {
            let before = part.length();
            match self.ask(source, part, &mut pace).await? {
                Some(ended) => return Ok(ended),
                // It may give a large file in slices, and is asked for the next.
                None if part.length() > before => {}
                None => return Err(DownloadError::Short { length: part.length(), signed }),
            }
        }
    }

    /// One request. `None`: it brought no more than is here, and that is not all.
    async fn ask(&mut self, source: &Source, part: &Writer, pace: &mut Pace) -> Result<Option<Ended>, DownloadError> {
        let (signed, from) = (self.target.length, part.length());
        let mut arrival = self.patiently(source.target(&self.target.location, from)).await?;
        // Without ranges the file comes from its first byte on. What is here stays and is not written again: a transfer
        // that breaks off early then loses nothing, and the hash is over what is on the disk.
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
            let Some(mut chunk) = self.patiently(arrival.chunk()).await? else { return Ok(None) };
            let came = chunk.len() as u64;
            let again = known.min(came);
            chunk.advance(usize::try_from(again).unwrap_or(chunk.len()));
            known -= again;
            self.wasted = self.wasted.saturating_add(again);
            if chunk.len() as u64 > signed - part.length() {
                self.wasted = self.wasted.saturating_add(chunk.len() as u64);
                self.tell(came)?;
                return Ok(Some(Ended::TooLong));
            }
            part.with(move |part| part.append(&chunk)).await?;
            self.tell(came)?;
            let least = self.limits.min_bytes_per_s;
            if let Some(bytes_per_s) = pace.slower_than(least, came, self.begun.elapsed()) {
                return Err(DownloadError::Slow { bytes_per_s, least });
            }
            pace.excuse(self.hold_back(came).await?);
        }
        // A length that was told was checked, and the server is held to it.
        let more = arrival.length.is_none() && self.has_more(&mut arrival).await?;
        Ok(Some(if more { Ended::TooLong } else { Ended::Whole }))
    }

    /// Whether anything comes after what is signed. How the rest of the transfer goes does not matter.
    async fn has_more(&mut self, arrival: &mut Arrival) -> Result<bool, DownloadError> {
        match self.patiently(arrival.chunk()).await {
            Ok(Some(chunk)) => {
                self.wasted = self.wasted.saturating_add(chunk.len() as u64);
                self.tell(chunk.len() as u64)?;
                Ok(true)
            }
            Err(DownloadError::Cancelled) => Err(DownloadError::Cancelled),
            _ => Ok(false),
        }
    }

    /// Waits for the source as long as it may be silent.
    async fn patiently<T>(&mut self, work: impl Future<Output = Result<T, SourceError>>) -> Result<T, DownloadError> {
        let (begun, mut work) = (Instant::now(), pin!(work));
        loop {
            let left = self.limits.stall.saturating_sub(begun.elapsed());
            if left.is_zero() {
                return Err(DownloadError::Stalled { seconds: self.limits.stall.as_secs() });
            }
            match timeout(left.min(LOOK_UP), &mut work).await {
                Ok(done) => return done.map_err(DownloadError::Source),
                Err(_) => self.tell(0)?,
            }
        }
    }

    /// Keeps to the bandwidth, and says how long that took.
    async fn hold_back(&mut self, bytes: u64) -> Result<Duration, DownloadError> {
        let pause = self.bucket.take(bytes, self.begun.elapsed());
        let until = Instant::now() + pause;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(pause);
            }
            sleep(left.min(LOOK_UP)).await;
            self.tell(0)?;
        }
    }

    fn tell(&mut self, bytes: u64) -> Result<(), DownloadError> {
        match (self.progress)(bytes) {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(()) => Err(DownloadError::Cancelled),
        }
    }
}

/// A part, read and written on threads that may wait for the disk. One that is dropped lets a write under way end.
struct Writer(Arc<Mutex<Part>>);

impl Writer {
    async fn open(store: &BlobStore, target: &Target) -> Result<Self, DownloadError> {
        let (store, sha256, length) = (store.clone(), target.sha256.clone(), target.length);
        // Settings are read before there is a key, and runtimes are no secret.
        let is_model = target.path.starts_with("models/");
        let part =
            blocking(move || if is_model { store.sealed_part(&sha256, length) } else { store.part(&sha256, length) });
        let part = part.await?;
        Ok(Self(Arc::new(Mutex::new(part))))
    }

    async fn with<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Part) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, DownloadError> {
        let part = self.0.clone();
        Ok(blocking(move || work(&mut part.lock().unwrap_or_else(PoisonError::into_inner))).await?)
    }

    fn length(&self) -> u64 {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).length()
    }
}
