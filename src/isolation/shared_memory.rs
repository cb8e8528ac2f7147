//! Memory that the daemon and one child share. The only unsafe code of the crate.
//!
//! Either side may write at any time, also while the other reads: a child that runs foreign code may do anything to it.
//! Nothing here returns a reference to bytes that an untrusted side could change: bytes are copied in and out, and the
//! words on which both sides wait are atomic. Only the child, which trusts the daemon, reads inputs in place.
#![expect(unsafe_code, reason = "mapping memory; each block says why it is sound")]

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use bytes::Bytes;
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::mm::{Advice, MapFlags, ProtFlags};

/// A mapping of shared memory, of a fixed length. Pages that were never touched take no memory.
#[derive(Debug)]
pub struct SharedMemory {
    start: NonNull<u8>,
    length: usize,
}

// SAFETY: the mapping belongs to no thread, and lives until the last handle is dropped. Its bytes are reached only by
// copies and by atomic words.
unsafe impl Send for SharedMemory {}
// SAFETY: as above.
unsafe impl Sync for SharedMemory {}

impl SharedMemory {
    /// Makes memory of `length` bytes, and the file by which another process maps it. No process can change its size:
    /// if the file shrank, a read beyond its end would cause a SIGBUS.
    pub fn create(name: &str, length: usize) -> io::Result<(Self, OwnedFd)> {
        let file = rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        rustix::fs::ftruncate(&file, length as u64)?;
        rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        Ok((Self::map(&file, length)?, file))
    }

    /// Maps memory that the other process made.
    pub fn map(file: impl AsFd, length: usize) -> io::Result<Self> {
        let file = file.as_fd();
        if rustix::fs::fstat(file)?.st_size != i64::try_from(length).unwrap_or(-1) {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the shared memory has another size"));
        }
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the kernel chooses a range of addresses that nothing uses. The file is as long as the mapping, and is
        // sealed against shrinking by `create`.
        let start = unsafe {
            rustix::mm::mmap(std::ptr::null_mut(), length, protection, MapFlags::SHARED | MapFlags::NORESERVE, file, 0)?
        };
        let start = NonNull::new(start.cast()).ok_or_else(|| io::Error::other("mapped at address 0"))?;
        Ok(Self { start, length })
    }

    /// The number of its bytes.
    pub fn len(&self) -> usize {
        self.length
    }

    /// The atomic word at `offset`, a multiple of 4.
    ///
    /// # Panics
    /// When the word is not within the memory: offsets of words are constants.
    pub fn word(&self, offset: usize) -> &AtomicU32 {
        assert!(offset.is_multiple_of(4) && offset + 4 <= self.length, "a word at {offset} of {}", self.length);
        // SAFETY: the word lies within the mapping and is aligned, since mappings begin at a page. Both processes reach
        // it only by atomic operations; a child that does otherwise can change its value, which may be any.
        unsafe { AtomicU32::from_ptr(self.start.add(offset).cast().as_ptr()) }
    }

    fn is_within(&self, offset: usize, length: usize) -> bool {
        offset.checked_add(length).is_some_and(|end| end <= self.length)
    }

    /// Copies `bytes` to `offset`; false when they do not lie within the memory.
    #[must_use]
    pub fn write(&self, offset: usize, bytes: &[u8]) -> bool {
        if !self.is_within(offset, bytes.len()) {
            return false;
        }
        // SAFETY: the target lies within the mapping, and no reference to it exists: `view` is only used by the side
        // that does not write there. `bytes` is memory of this process's own.
        unsafe { self.start.add(offset).copy_from_nonoverlapping(NonNull::from(bytes).cast(), bytes.len()) };
        true
    }

    /// A copy of `length` bytes at `offset`; `None` when they do not lie within the memory, or there is no memory for
    /// the copy.
    pub fn read(&self, offset: usize, length: usize) -> Option<Vec<u8>> {
        if !self.is_within(offset, length) {
            return None;
        }
        let mut copy = Vec::<u8>::new();
        copy.try_reserve_exact(length).ok()?;
        // SAFETY: the source lies within the mapping, the target is reserved, and they do not overlap. The other
        // process may write to the source meanwhile; then the copy has bytes of before and after, and any bytes are a
        // valid `u8`. This is how virtual machine monitors read the memory of their guests.
        unsafe {
            self.start.add(offset).copy_to_nonoverlapping(NonNull::new_unchecked(copy.as_mut_ptr()), length);
            copy.set_len(length);
        }
        Some(copy)
    }

    /// The bytes at `offset` in place, for the child: the daemon does not change them before it has the answer.
    pub fn view(self: &Arc<Self>, offset: usize, length: usize) -> Option<Bytes> {
        let view = SharedMemoryView { memory: self.clone(), offset, length };
        self.is_within(offset, length).then(|| Bytes::from_owner(view))
    }

    /// Gives back the memory of the pages within `from..to`; they are zeros afterwards, for both processes.
    pub fn release(&self, from: usize, to: usize) {
        let page = rustix::param::page_size();
        let (from, to) = (from.next_multiple_of(page), to.min(self.length) / page * page);
        if from >= to {
            return;
        }
        // SAFETY: the pages lie within the mapping, and no reference to them exists. A failure leaves them as they are.
        let _ = unsafe { rustix::mm::madvise(self.start.add(from).as_ptr().cast(), to - from, Advice::LinuxRemove) };
    }
}

impl Drop for SharedMemory {
    fn drop(&mut self) {
        // SAFETY: this is the range that `map` mapped, and with the last handle nothing refers to it.
        let _ = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.length) };
    }
}

/// The owner of bytes that are read in place.
struct SharedMemoryView {
    memory: Arc<SharedMemory>,
    offset: usize,
    length: usize,
}

impl AsRef<[u8]> for SharedMemoryView {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: `SharedMemory::view` checked that the bytes lie within the mapping, which lives while this does. The
        // daemon writes them before it asks, and not again before it has the answer; the child drops every view before
        // it answers, and never writes there.
        unsafe { std::slice::from_raw_parts(self.memory.start.add(self.offset).as_ptr(), self.length) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering;

    #[test]
    fn two_mappings_see_the_same_bytes_and_words() {
        let (own, file) = SharedMemory::create("test", 1 << 20).unwrap();
        let other = Arc::new(SharedMemory::map(&file, 1 << 20).unwrap());
        own.word(64).store(7, Ordering::Release);
        assert_eq!(other.word(64).load(Ordering::Acquire), 7);
        assert!(own.write(5000, b"photograph"));
        assert_eq!(other.read(5000, 10).as_deref(), Some(&b"photograph"[..]));
        assert_eq!(other.view(5005, 5).unwrap(), &b"graph"[..]);
        own.release(0, 1 << 20);
        assert_eq!(other.read(5000, 10), Some(vec![0; 10]));
    }

    #[test]
    fn nothing_outside_is_read_or_written_and_the_size_stays() {
        let (own, file) = SharedMemory::create("test", 4096).unwrap();
        for (offset, length) in [(4096, 1), (0, 4097), (usize::MAX, 2), (1, usize::MAX)] {
            assert_eq!(own.read(offset, length), None);
            assert!(Arc::new(SharedMemory::map(&file, 4096).unwrap()).view(offset, length).is_none());
        }
        assert!(!own.write(4090, b"too long"));
        assert!(own.write(4096, b"") && own.read(4096, 0).is_some());
        assert!(rustix::fs::ftruncate(&file, 0).is_err());
        assert!(SharedMemory::map(&file, 8192).is_err());
    }
}
