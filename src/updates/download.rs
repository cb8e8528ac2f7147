//! One file from the repository into the update store: bounded, resumed over days, and taken only if it is what was signed.
//!
//! The hash alone decides. What a server says of ranges, lengths and validators saves bytes, or ends a transfer early; no
//! word of it is believed. `If-Range` is not sent: some servers ignore it.

mod pace;
#[cfg(test)]
mod tests;

use std::ops::ControlFlow;
use std::pin::pin;
use std::time::Duration;

use bytes::{Buf, Bytes};
use tokio::time::{Instant, sleep, timeout};

use self::pace::{Bucket, Pace};
use super::config::UpdatesConfig;
use super::source::{Arrival, Source, SourceError};
use super::state::Cause;
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

/// Why a file is not here. What is here of it stays, but for [`Self::Content`].
#[derive(Debug, thiserror::Error)]
pub enum DownloadError {
    /// The repository does not give it.
    #[error("{target} is not to be had")]
    Source {
        /// The file.
        target: String,
        /// As the source says it.
        source: SourceError,
    },
    /// Nothing came any more.
    #[error("{target}: nothing came for {seconds} s")]
    Stalled {
        /// The file.
        target: String,
        /// How long.
        seconds: u64,
    },
    /// Too little came.
    #[error("{target}: {bytes_per_s} bytes a second over a minute, {least} are the least")]
    Slow {
        /// The file.
        target: String,
        /// What came.
        bytes_per_s: u64,
        /// What had to come.
        least: u64,
    },
    /// The transfer ended early.
    #[error("{target}: the transfer ended after {length} of {signed} bytes")]
    Short {
        /// The file.
        target: String,
        /// So many are here.
        length: u64,
        /// So many are signed.
        signed: u64,
    },
    /// The server gives other bytes than it was asked for.
    #[error("{target}: asked for the bytes from {asked} on, got those from {got} on")]
    Range {
        /// The file.
        target: String,
        /// From where it should go on.
        asked: u64,
        /// From where it would.
        got: u64,
    },
    /// The server has a file of another length.
    #[error("{target} has {length} bytes there, {signed} are signed")]
    Length {
        /// The file.
        target: String,
        /// As the server says.
        length: u64,
        /// As it is signed.
        signed: u64,
    },
    /// Two transfers, the second one from the first byte on, brought another file than was signed.
    #[error("{target} is another file than was signed: its SHA-256 is not {sha256}, twice")]
    Content {
        /// The file.
        target: String,
        /// Of what was signed.
        sha256: String,
    },
    /// There is no room.
    #[error("{target}: {needed} bytes are needed on the disk with those that stay free, {free} are free")]
    Room {
        /// The file.
        target: String,
        /// With `updates.min_free_mb`.
        needed: u64,
        /// What there is.
        free: u64,
    },
    /// The store fails.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Whoever asked for it does not want it any more.
    #[error("the download was cancelled")]
    Cancelled,
}

impl DownloadError {
    /// Whether it would fail again.
    pub fn is_final(&self) -> bool {
        match self {
            Self::Source { source, .. } => source.is_final(),
            Self::Content { .. } | Self::Store(StoreError::Digest { .. }) => true,
            _ => false,
        }
    }

    /// What stops a release, if this does.
    pub fn cause(&self) -> Cause {
        match self {
            Self::Room { .. } => Cause::Disk,
            Self::Store(error) => error.cause(),
            Self::Cancelled => Cause::Operator,
            _ => Cause::Download,
        }
    }

    /// When the server said that it may be asked again.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Source { source, .. } => source.retry_after(),
            _ => None,
        }
    }
}

/// Brings the file of `target` into the store, unless it is there.
///
/// `progress` hears of the bytes that came since it last did, once a second at least, and can end the transfer. Whatever
/// ends it, the bytes that are here are not fetched again: after an error or a cancellation none, after `kill -9` or a power
/// cut all but the last MiB. Bytes that are not what was signed are thrown away and fetched once more.
pub async fn fetch(
    store: &BlobStore,
    source: &Source,
    target: &Target,
    limits: &DownloadLimits,
    progress: impl FnMut(u64) -> ControlFlow<()>,
) -> Result<(), DownloadError> {
    if store.has(&target.sha256) {
        return Ok(());
    }
    let mut transfer = Transfer {
        target,
        limits,
        progress,
        begun: Instant::now(),
        bucket: Bucket::new(limits.max_bytes_per_s),
        part: None,
    };
    // A second time because the first may have gone on from bytes that an earlier server, or a dying disk, got wrong.
    for _ in 0..2 {
        transfer.open(store).await?;
        let ended = transfer.run(source).await;
        let part = transfer.part.take();
        match (ended, part) {
            (Ok(Ended::Whole), Some(part)) => {
                if blocking(move || part.finish()).await? {
                    return Ok(());
                }
            }
            (Ok(Ended::TooLong), Some(part)) => blocking(move || part.remove()).await?,
            (Err(error), Some(mut part)) => {
                // A failure costs a MiB, and says less than the one before.
                let _ = blocking(move || part.settle()).await;
                return Err(error);
            }
            (Err(error), None) => return Err(error),
            (Ok(_), None) => {}
        }
    }
    Err(DownloadError::Content { target: target.path.clone(), sha256: target.sha256.clone() })
}

/// How a transfer came to its end.
enum Ended {
    /// As many bytes are here as were signed.
    Whole,
    /// There are more.
    TooLong,
}

/// A file on its way.
struct Transfer<'a, P> {
    target: &'a Target,
    limits: &'a DownloadLimits,
    progress: P,
    begun: Instant,
    bucket: Bucket,
    /// Away while its thread writes, and lost when that fails.
    part: Option<Part>,
}

impl<P: FnMut(u64) -> ControlFlow<()>> Transfer<'_, P> {
    async fn open(&mut self, store: &BlobStore) -> Result<(), DownloadError> {
        let (handle, sha256, length) = (store.clone(), self.target.sha256.clone(), self.target.length);
        let part = blocking(move || handle.part(&sha256, length)).await?;
        let left = self.target.length.saturating_sub(part.length());
        self.part = Some(part);
        let (needed, free) = (left.saturating_add(self.limits.min_free_bytes), store.free_bytes()?);
        if left > 0 && free < needed {
            return Err(DownloadError::Room { target: self.name(), needed, free });
        }
        Ok(())
    }

    async fn run(&mut self, source: &Source) -> Result<Ended, DownloadError> {
        let (signed, from) = (self.target.length, self.length());
        if from == signed {
            return Ok(Ended::Whole);
        }
        let mut arrival = self.patiently(source.target(&self.target.location, from)).await?;
        // Without ranges the file comes from its first byte on. What is here stays and is not written again: a transfer
        // that breaks off early then loses nothing, and the hash is over what is on the disk.
        let mut known = match arrival.start {
            0 => from,
            start if start == from => 0,
            got => return Err(DownloadError::Range { target: self.name(), asked: from, got }),
        };
        if let Some(length) = arrival.length.map(|length| length.saturating_add(arrival.start))
            && length != signed
        {
            return Err(DownloadError::Length { target: self.name(), length, signed });
        }
        let mut pace = Pace::new(self.begun.elapsed());
        while self.length() < signed {
            let Some(mut chunk) = self.patiently(arrival.chunk()).await? else {
                return Err(DownloadError::Short { target: self.name(), length: self.length(), signed });
            };
            let came = chunk.len() as u64;
            chunk.advance(usize::try_from(known.min(came)).unwrap_or(chunk.len()));
            known -= known.min(came);
            if chunk.len() as u64 > signed - self.length() {
                self.tell(came)?;
                return Ok(Ended::TooLong);
            }
            self.append(chunk).await?;
            self.tell(came)?;
            if let Some(bytes_per_s) = pace.slower_than(self.limits.min_bytes_per_s, came, self.begun.elapsed()) {
                let least = self.limits.min_bytes_per_s;
                return Err(DownloadError::Slow { target: self.name(), bytes_per_s, least });
            }
            pace.excuse(self.hold_back(came).await?);
        }
        // A length that was told was checked, and the server is held to it.
        let more = arrival.length.is_none() && self.has_more(&mut arrival).await?;
        Ok(if more { Ended::TooLong } else { Ended::Whole })
    }

    /// Whether anything comes after what is signed. How the rest of the transfer goes does not matter.
    async fn has_more(&mut self, arrival: &mut Arrival) -> Result<bool, DownloadError> {
        match self.patiently(arrival.chunk()).await {
            Ok(Some(chunk)) => {
                self.tell(chunk.len() as u64)?;
                Ok(true)
            }
            Err(DownloadError::Cancelled) => Err(DownloadError::Cancelled),
            _ => Ok(false),
        }
    }

    async fn append(&mut self, chunk: Bytes) -> Result<(), DownloadError> {
        if let Some(mut part) = self.part.take() {
            self.part = Some(blocking(move || part.append(&chunk).map(|()| part)).await?);
        }
        Ok(())
    }

    /// Waits for the source as long as it may be silent.
    async fn patiently<T>(&mut self, work: impl Future<Output = Result<T, SourceError>>) -> Result<T, DownloadError> {
        let (begun, mut work) = (Instant::now(), pin!(work));
        loop {
            let left = self.limits.stall.saturating_sub(begun.elapsed());
            if left.is_zero() {
                return Err(DownloadError::Stalled { target: self.name(), seconds: self.limits.stall.as_secs() });
            }
            match timeout(left.min(LOOK_UP), &mut work).await {
                Ok(done) => return done.map_err(|source| DownloadError::Source { target: self.name(), source }),
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

    fn length(&self) -> u64 {
        self.part.as_ref().map_or(0, Part::length)
    }

    fn name(&self) -> String {
        self.target.path.clone()
    }
}

/// Reads and writes files on a thread that may wait for the disk.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic()))
}
