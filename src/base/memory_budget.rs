//! The memory that the calls of all callers take together. Each part counts while its [`MemoryReservation`] lives.
//!
//! The data derived from a call counts too: its tensors, its picture, and its answer until the caller has read it. Work
//! that does not fit is not begun. No caller excludes the others: while others want memory, a caller gets at most half
//! of the budget.

use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::principal::Principal;
use crate::sys;

/// Bodies up to this size are not counted and always find room: there are no more of them than connections, and callers
/// with large bodies do not keep small ones out. They need no lock either.
pub const UNCOUNTED_BYTES_MAX: usize = 16 << 10;

/// The time during which no caller may have more than half of the budget, after one found no room because another had
/// more than half.
const FAIR_SHARE_DURATION: Duration = Duration::from_secs(10);

/// The step in which a growing reservation is counted, in bytes.
const GROWTH_STEP_BYTES: usize = 256 << 10;

/// The released bytes after which free memory is returned to the system.
const RETURN_STEP_BYTES: usize = 16 << 20;

/// The time between two returns of free memory, each of which walks the whole heap.
const RETURN_INTERVAL: Duration = Duration::from_millis(100);

/// The used bytes and their limit. Clones share them.
#[derive(Debug, Clone)]
pub struct MemoryBudget(Arc<BudgetState>);

#[derive(Debug)]
struct BudgetState {
    limit: usize,
    sums: Mutex<BudgetUsage>,
    /// Notified when [`RETURN_STEP_BYTES`] are released.
    released: Condvar,
}

#[derive(Debug, Default)]
struct BudgetUsage {
    used: usize,
    /// The bytes of each caller that holds some.
    of: HashMap<Principal, usize>,
    wanted_until: Option<Instant>,
    /// The bytes released since free memory was last returned to the system.
    released: usize,
}

/// The budget has no room now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[error("out of request memory (http.max_memory_bytes); retry after 1 s")]
pub struct MemoryBudgetExhausted;

impl MemoryBudgetExhausted {
    /// The `Retry-After` of a call that found no room.
    pub const RETRY_AFTER: Duration = Duration::from_secs(1);
}

/// The account of a caller, from which memory is taken.
#[derive(Debug, Clone)]
pub struct MemoryAccount {
    memory: Option<Arc<BudgetState>>,
    owner: Principal,
}

/// Bytes that a call holds from the budget.
#[derive(Debug)]
#[must_use = "the bytes count for as long as this lives"]
pub struct MemoryReservation {
    account: MemoryAccount,
    bytes: usize,
    /// The bytes that count: none of them, or all.
    counted: usize,
}

impl MemoryBudget {
    /// An empty budget.
    pub fn new(limit: usize) -> Self {
        Self(Arc::new(BudgetState { limit, sums: Mutex::default(), released: Condvar::new() }))
    }

    /// The number of bytes held.
    pub fn used(&self) -> usize {
        self.0.sums().used
    }

    /// The account of a caller.
    pub fn account(&self, owner: Principal) -> MemoryAccount {
        MemoryAccount { memory: Some(self.0.clone()), owner }
    }

    /// Returns free memory to the system for ever, soon after calls have released [`RETURN_STEP_BYTES`]. The allocator
    /// keeps memory that was freed in small blocks: rows and texts of one call would remain in addition to the bodies
    /// of the next, 78 MiB of them at a limit of 128 MiB.
    pub fn return_released(&self) -> ! {
        loop {
            let sums = self.0.sums();
            let is_little = |sums: &mut BudgetUsage| sums.released < RETURN_STEP_BYTES;
            drop(self.0.released.wait_while(sums, is_little).unwrap_or_else(PoisonError::into_inner));
            // Memory that is released during the pause is returned too.
            std::thread::sleep(RETURN_INTERVAL);
            self.0.sums().released = 0;
            sys::return_free_memory();
        }
    }
}

impl BudgetState {
    fn sums(&self) -> MutexGuard<'_, BudgetUsage> {
        // Nothing panics under this lock.
        self.sums.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl BudgetUsage {
    /// Checks that `owner` may have `more` bytes.
    fn admit(
        &mut self,
        owner: &Principal,
        more: usize,
        limit: usize,
        now: Instant,
    ) -> Result<(), MemoryBudgetExhausted> {
        let own = self.of.get(owner).copied().unwrap_or(0);
        let is_within_share = own.saturating_add(more) <= limit / 2;
        let is_wanted = self.used > own || self.wanted_until.is_some_and(|until| now < until);
        if self.used.saturating_add(more) <= limit && (is_within_share || !is_wanted) {
            return Ok(());
        }
        if is_within_share {
            self.wanted_until = now.checked_add(FAIR_SHARE_DURATION);
        }
        Err(MemoryBudgetExhausted)
    }

    fn add(&mut self, owner: &Principal, more: usize) {
        self.used += more;
        match self.of.get_mut(owner) {
            Some(own) => *own += more,
            None => drop(self.of.insert(owner.clone(), more)),
        }
    }

    fn remove(&mut self, owner: &Principal, bytes: usize) {
        self.used -= bytes;
        self.released = self.released.saturating_add(bytes);
        if let Some(own) = self.of.get_mut(owner) {
            *own -= bytes;
            if *own == 0 {
                self.of.remove(owner);
            }
        }
    }
}

impl MemoryAccount {
    /// An account without a limit, for a caller on this box.
    pub fn unlimited() -> Self {
        Self { memory: None, owner: Principal::Local }
    }

    /// The owner of the counted memory; `None` for an account without a limit.
    pub fn counted_owner(&self) -> Option<&Principal> {
        self.memory.as_ref().map(|_| &self.owner)
    }

    /// An empty reservation.
    pub fn hold(&self) -> MemoryReservation {
        MemoryReservation { account: self.clone(), bytes: 0, counted: 0 }
    }

    /// Takes `bytes` bytes.
    pub fn take(&self, bytes: usize) -> Result<MemoryReservation, MemoryBudgetExhausted> {
        let mut hold = self.hold();
        hold.grow(bytes)?;
        Ok(hold)
    }

    /// Takes bytes that are in memory already, beyond the limit if necessary: later calls have to wait.
    pub fn force_reserve(&self, bytes: usize) -> MemoryReservation {
        let counted = if bytes > UNCOUNTED_BYTES_MAX { bytes } else { 0 };
        if let Some(memory) = self.memory.as_ref().filter(|_| counted > 0) {
            memory.sums().add(&self.owner, counted);
        }
        MemoryReservation { account: self.clone(), bytes, counted }
    }

    /// True if `bytes` bytes would find room now.
    pub fn has_room(&self, bytes: usize) -> bool {
        let Some(memory) = self.memory.as_ref().filter(|_| bytes > UNCOUNTED_BYTES_MAX) else { return true };
        memory.sums().admit(&self.owner, bytes, memory.limit, Instant::now()).is_ok()
    }
}

impl MemoryReservation {
    /// The number of bytes that it holds.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Reserves more bytes.
    pub fn grow(&mut self, more: usize) -> Result<(), MemoryBudgetExhausted> {
        let bytes = self.bytes.saturating_add(more);
        if let Some(memory) = self.account.memory.as_ref().filter(|_| bytes > UNCOUNTED_BYTES_MAX) {
            let (owner, more) = (&self.account.owner, bytes - self.counted);
            let mut sums = memory.sums();
            sums.admit(owner, more, memory.limit, Instant::now())?;
            sums.add(owner, more);
            self.counted = bytes;
        }
        self.bytes = bytes;
        Ok(())
    }

    /// Grows the reservation to at least `bytes`, and some more for further growth.
    pub fn cover(&mut self, bytes: usize) -> Result<(), MemoryBudgetExhausted> {
        match bytes.checked_sub(self.bytes) {
            None | Some(0) => Ok(()),
            Some(_) if bytes <= UNCOUNTED_BYTES_MAX => self.grow(UNCOUNTED_BYTES_MAX - self.bytes),
            Some(more) => self.grow(more.max(GROWTH_STEP_BYTES)),
        }
    }

    /// Sets the reservation to exactly `bytes`.
    pub fn resize(&mut self, bytes: usize) -> Result<(), MemoryBudgetExhausted> {
        if bytes >= self.bytes {
            return self.grow(bytes - self.bytes);
        }
        self.shrink(self.bytes - bytes);
        Ok(())
    }

    /// Releases all bytes.
    pub fn release(&mut self) {
        self.shrink(self.bytes);
    }

    /// Releases `by` bytes.
    fn shrink(&mut self, by: usize) {
        self.bytes -= by;
        let by = by.min(self.counted);
        self.counted -= by;
        if let Some(memory) = self.account.memory.as_ref().filter(|_| by > 0) {
            let mut sums = memory.sums();
            sums.remove(&self.account.owner, by);
            if sums.released >= RETURN_STEP_BYTES {
                memory.released.notify_one();
            }
        }
    }

    /// Attaches the reservation to `bytes`: they count until their last clone is dropped.
    pub fn attach(self, bytes: Bytes) -> Bytes {
        if self.counted == 0 { bytes } else { Bytes::from_owner(ReservedBytes { bytes, _hold: self }) }
    }
}

impl Drop for MemoryReservation {
    fn drop(&mut self) {
        self.release();
    }
}

struct ReservedBytes {
    bytes: Bytes,
    _hold: MemoryReservation,
}

impl AsRef<[u8]> for ReservedBytes {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str) -> Principal {
        Principal::Key(name.into())
    }

    #[test]
    fn what_is_held_counts_while_it_is_and_never_beyond_the_limit() {
        let memory = MemoryBudget::new(100_000);
        let account = memory.account(key("a"));
        let (mut one, mut other) = (account.hold(), account.hold());
        assert_eq!((one.grow(60_000), other.grow(50_000)), (Ok(()), Err(MemoryBudgetExhausted)));
        assert_eq!((memory.used(), account.has_room(40_000), account.has_room(40_001)), (60_000, true, false));
        one.resize(40_000).unwrap();
        assert_eq!(other.grow(50_000), Ok(()));
        drop((one, other));
        assert_eq!(memory.used(), 0);
        assert!(memory.0.sums().of.is_empty());
    }

    #[test]
    fn the_small_find_room_whatever_the_large_hold() {
        let memory = MemoryBudget::new(100_000);
        let account = memory.account(key("a"));
        let large = account.force_reserve(100_001);
        let mut small = account.hold();
        assert_eq!((small.grow(UNCOUNTED_BYTES_MAX), account.has_room(UNCOUNTED_BYTES_MAX)), (Ok(()), true));
        assert_eq!(small.grow(1), Err(MemoryBudgetExhausted), "it is not small any more");
        drop(large);
        assert_eq!(small.grow(1), Ok(()));
    }

    #[test]
    fn bytes_that_are_kept_count_as_long_as_any_of_them_is_there() {
        let memory = MemoryBudget::new(100_000);
        let account = memory.account(key("a"));
        let bytes = account.take(50_000).unwrap().attach(vec![7; 50_000].into());
        let part = bytes.slice(49_999..);
        drop(bytes);
        assert_eq!((memory.used(), &part[..]), (50_000, &[7][..]));
        drop(part);
        assert_eq!(memory.used(), 0);
    }

    #[test]
    fn what_grows_bit_by_bit_is_counted_in_steps_and_in_the_end_exactly() {
        let memory = MemoryBudget::new(10 * GROWTH_STEP_BYTES);
        let mut hold = memory.account(key("a")).hold();
        for bytes in 0..UNCOUNTED_BYTES_MAX {
            hold.cover(bytes).unwrap();
        }
        assert_eq!(memory.used(), 0);
        hold.cover(UNCOUNTED_BYTES_MAX + 1).unwrap();
        assert_eq!(memory.used(), UNCOUNTED_BYTES_MAX + GROWTH_STEP_BYTES);
        hold.resize(UNCOUNTED_BYTES_MAX + 1).unwrap();
        assert_eq!(memory.used(), UNCOUNTED_BYTES_MAX + 1);
        assert_eq!(hold.cover(10 * GROWTH_STEP_BYTES + 1), Err(MemoryBudgetExhausted));
    }

    #[test]
    fn one_caller_has_no_more_than_half_while_another_has_any() {
        let memory = MemoryBudget::new(200_000);
        let (one, other) = (memory.account(key("a")), memory.account(key("b")));
        let held = other.take(20_000).unwrap();
        let share = one.take(100_000).unwrap();
        assert!(!one.has_room(UNCOUNTED_BYTES_MAX + 1));
        assert!(other.has_room(80_000));
        drop(held);
        assert!(one.has_room(100_000));
        drop(share);
    }

    #[test]
    fn a_caller_who_has_it_all_has_half_once_another_was_turned_away() {
        let memory = MemoryBudget::new(200_000);
        let (one, other) = (memory.account(key("a")), memory.account(key("b")));
        let mut all: Vec<_> = (0..4).map(|_| one.take(50_000).unwrap()).collect();
        assert!(!one.has_room(50_000), "that it turns itself away is no reason");
        assert_eq!(memory.0.sums().wanted_until, None);
        assert!(!other.has_room(50_000));
        // The other caller gets its part, however fast this one reserves again what it released.
        for _ in 0..2 {
            drop(all.pop());
            assert!(!one.has_room(50_000));
        }
        assert!(other.has_room(50_000));
        let later = Instant::now() + FAIR_SHARE_DURATION;
        assert!(memory.0.sums().admit(&key("a"), 100_000, 200_000, later).is_ok(), "when nobody wants it any more");
    }
}
