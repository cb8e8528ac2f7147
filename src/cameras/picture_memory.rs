//! The memory for the pictures of all cameras together, from the fetch until the last use.

use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The most bytes of all fetched pictures together: 256 cameras with 1 MiB each, or 16 of the largest pictures.
pub const PICTURES_BYTES_MAX: usize = 256 << 20;

/// The most bytes of the pictures that are kept to be shown, and of their drawings, for all cameras together. A kept
/// picture that was fetched counts in [`PICTURES_BYTES_MAX`] as well, so most of that is left for pictures on their
/// way.
pub const KEPT_BYTES_MAX: usize = 64 << 20;

/// The memory of all cameras. Clones share it.
///
/// A camera reserves the length of its picture once its response states it, so a slow camera holds no more than that:
/// for the ten seconds of a fetch and the ten of an inference at the longest. Only a response without a length reserves
/// the largest size, until the picture has arrived. A fetch that finds no room waits in a queue, up to the time limit
/// of a fetch, so small pictures cannot overtake a large one for ever.
#[derive(Debug, Clone)]
pub struct PictureMemory(Arc<Semaphore>);

/// Room for one picture. The semaphore is never closed, so there always is a permit.
#[derive(Debug)]
pub struct PicturePermit(Option<OwnedSemaphorePermit>);

impl PictureMemory {
    pub fn new(bytes: usize) -> Self {
        Self(Arc::new(Semaphore::new(bytes >> 10)))
    }

    /// Waits for room for `bytes` bytes.
    pub async fn room(&self, bytes: usize) -> PicturePermit {
        PicturePermit(self.0.clone().acquire_many_owned(kib(bytes)).await.ok())
    }

    /// Reserves memory for `picture` and attaches it; `None` without room at present.
    pub fn try_keep(&self, picture: Bytes) -> Option<Bytes> {
        let permit = self.0.clone().try_acquire_many_owned(kib(picture.len())).ok()?;
        Some(PicturePermit(Some(permit)).keep(picture))
    }
}

impl PicturePermit {
    /// Attaches the reserved memory to `picture`, which frees it when the last clone is dropped. Any excess is freed
    /// now.
    pub fn keep(mut self, picture: Bytes) -> Bytes {
        if let Some(permit) = &mut self.0 {
            let surplus = permit.num_permits().saturating_sub(picture.len().div_ceil(1024));
            drop(permit.split(surplus));
        }
        Bytes::from_owner(HeldPicture { picture, _room: self })
    }
}

/// Permits are KiB: a semaphore takes no more than 2^32 of them at a time.
fn kib(bytes: usize) -> u32 {
    u32::try_from(bytes.div_ceil(1024)).unwrap_or(u32::MAX)
}

struct HeldPicture {
    picture: Bytes,
    _room: PicturePermit,
}

impl AsRef<[u8]> for HeldPicture {
    fn as_ref(&self) -> &[u8] {
        &self.picture
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[test]
    fn a_picture_takes_what_it_needs_until_its_last_part_is_dropped() {
        let memory = PictureMemory::new(10 << 10);
        let room = |bytes: usize| memory.room(bytes).now_or_never();
        let largest = room(10 << 10).unwrap();
        assert!(room(1).is_none());
        let picture = largest.keep(vec![7; 5000].into());
        assert_eq!(memory.0.available_permits(), 5);
        let part = picture.slice(4999..);
        drop(picture);
        assert!(room(6 << 10).is_none() && part[..] == [7]);
        drop(part);
        assert_eq!(memory.0.available_permits(), 10);
    }

    #[test]
    fn a_picture_is_kept_only_where_there_is_room_now() {
        let memory = PictureMemory::new(10 << 10);
        let first = memory.try_keep(vec![7; 6 << 10].into()).unwrap();
        assert_eq!(memory.try_keep(vec![7; 5 << 10].into()), None);
        drop(first);
        assert_eq!(memory.try_keep(vec![7; 10 << 10].into()).map(|kept| kept.len()), Some(10 << 10));
    }

    #[tokio::test]
    async fn a_large_picture_is_not_overtaken_by_small_ones() {
        let memory = PictureMemory::new(10 << 10);
        let first = memory.room(4 << 10).await;
        let mut large = std::pin::pin!(memory.room(10 << 10));
        assert!(large.as_mut().now_or_never().is_none());
        assert!(memory.room(1).now_or_never().is_none(), "it waits behind the large one");
        drop(first);
        assert!(large.now_or_never().is_some());
    }
}
