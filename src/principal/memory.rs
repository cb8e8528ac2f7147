//! How much memory the calls of all callers take together: each part counts for as long as its [`Hold`] lives.
//!
//! What is made of a call counts, too: its tensors, its picture, its answer until the caller has read it. Nothing begins that
//! does not fit, and no caller keeps the others out: it may have half of it all while others want some.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::available_parallelism;
use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::Principal;

/// What is not larger does not count and always finds room: there are no more such bodies than connections, and whoever
/// sends large ones does not keep small ones out. It costs no lock either.
pub const SMALL: usize = 16 << 10;

/// For so long after somebody found no room because another had more than half, nobody may have more than half.
const WANTED: Duration = Duration::from_secs(10);

/// So many callers without work are remembered.
const IDLE: usize = 64;

/// What grows bit by bit is counted in steps.
const STEP: usize = 256 << 10;

/// The sum, and its limit. Clones are the same sum.
#[derive(Debug, Clone)]
pub struct RequestMemory(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    limit: usize,
    sums: Mutex<Sums>,
    turns: Turns,
}

#[derive(Debug, Default)]
struct Sums {
    used: usize,
    /// Who holds any of it.
    of: HashMap<Principal, usize>,
    wanted_until: Option<Instant>,
}

/// Turns for work that makes much of little: as many at a time as there are cores. A caller has no more of them, and no more
/// that wait in the one queue for all, so that whoever sends much of it delays itself.
#[derive(Debug)]
struct Turns {
    cores: usize,
    all: Arc<Semaphore>,
    of: Mutex<HashMap<Principal, Arc<Semaphore>>>,
}

/// There is no room now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("there is no memory for this call beside those that are being answered (http.max_memory_bytes)")]
pub struct NoRoom;

impl NoRoom {
    /// When a call that found no room may come again.
    pub const RETRY_AFTER: Duration = Duration::from_secs(1);
}

/// In whose name memory is taken.
#[derive(Debug, Clone)]
pub struct Account {
    memory: Option<Arc<Shared>>,
    owner: Principal,
}

/// Bytes that a call holds.
#[derive(Debug)]
#[must_use = "the bytes count for as long as this lives"]
pub struct Hold {
    account: Account,
    bytes: usize,
    /// None of them, or all.
    counted: usize,
}

impl RequestMemory {
    /// With nothing in it.
    pub fn new(limit: usize) -> Self {
        let cores = available_parallelism().map_or(1, usize::from);
        let turns = Turns { cores, all: Arc::new(Semaphore::new(cores)), of: Mutex::default() };
        Self(Arc::new(Shared { limit, sums: Mutex::default(), turns }))
    }

    /// How many bytes are held.
    pub fn used(&self) -> usize {
        self.0.sums().used
    }

    /// The account of a caller.
    pub fn account(&self, owner: Principal) -> Account {
        Account { memory: Some(self.0.clone()), owner }
    }
}

impl Shared {
    fn sums(&self) -> MutexGuard<'_, Sums> {
        // Nothing panics under this lock.
        self.sums.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Turns {
    /// A turn of `owner`, until it is dropped.
    async fn take(&self, owner: &Principal) -> [Option<OwnedSemaphorePermit>; 2] {
        // No semaphore is ever closed.
        let own = self.own(owner).acquire_owned().await.ok();
        [own, self.all.clone().acquire_owned().await.ok()]
    }

    fn own(&self, owner: &Principal) -> Arc<Semaphore> {
        // Nothing panics under this lock.
        let mut of = self.of.lock().unwrap_or_else(PoisonError::into_inner);
        if of.len() >= IDLE {
            of.retain(|_, turns| Arc::strong_count(turns) > 1);
        }
        of.entry(owner.clone()).or_insert_with(|| Arc::new(Semaphore::new(self.cores))).clone()
    }
}

impl Sums {
    /// Whether `owner` may have so many bytes more.
    fn admit(&mut self, owner: &Principal, more: usize, limit: usize, now: Instant) -> Result<(), NoRoom> {
        let own = self.of.get(owner).copied().unwrap_or(0);
        let is_within_share = own.saturating_add(more) <= limit / 2;
        let is_wanted = self.used > own || self.wanted_until.is_some_and(|until| now < until);
        if self.used.saturating_add(more) <= limit && (is_within_share || !is_wanted) {
            return Ok(());
        }
        if is_within_share {
            self.wanted_until = now.checked_add(WANTED);
        }
        Err(NoRoom)
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
        if let Some(own) = self.of.get_mut(owner) {
            *own -= bytes;
            if *own == 0 {
                self.of.remove(owner);
            }
        }
    }
}

impl Account {
    /// One without a limit, for a caller on this box.
    pub fn unlimited() -> Self {
        Self { memory: None, owner: Principal::Local }
    }

    /// A hold of nothing yet.
    pub fn hold(&self) -> Hold {
        Hold { account: self.clone(), bytes: 0, counted: 0 }
    }

    /// Takes so many bytes.
    pub fn take(&self, bytes: usize) -> Result<Hold, NoRoom> {
        let mut hold = self.hold();
        hold.grow(bytes)?;
        Ok(hold)
    }

    /// Takes bytes that are there already, beyond the limit, too: what comes then has to wait.
    pub fn take_anyway(&self, bytes: usize) -> Hold {
        let counted = if bytes > SMALL { bytes } else { 0 };
        if let Some(memory) = self.memory.as_ref().filter(|_| counted > 0) {
            memory.sums().add(&self.owner, counted);
        }
        Hold { account: self.clone(), bytes, counted }
    }

    /// Whether so many bytes would find room now.
    pub fn has_room(&self, bytes: usize) -> bool {
        let Some(memory) = self.memory.as_ref().filter(|_| bytes > SMALL) else { return true };
        memory.sums().admit(&self.owner, bytes, memory.limit, Instant::now()).is_ok()
    }

    /// Does what makes much of little on a thread of its own: as an async thread's work it would keep other callers waiting.
    /// There are as many of such threads as cores, and each does its work to the end when the caller has gone.
    pub async fn off_thread<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> T {
        let turn = match &self.memory {
            Some(memory) => Some(memory.turns.take(&self.owner).await),
            None => None,
        };
        let working = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            work()
        });
        working.await.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic()))
    }
}

impl Hold {
    /// How many it holds.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Holds more bytes.
    pub fn grow(&mut self, more: usize) -> Result<(), NoRoom> {
        let bytes = self.bytes.saturating_add(more);
        if let Some(memory) = self.account.memory.as_ref().filter(|_| bytes > SMALL) {
            let (owner, more) = (&self.account.owner, bytes - self.counted);
            let mut sums = memory.sums();
            sums.admit(owner, more, memory.limit, Instant::now())?;
            sums.add(owner, more);
            self.counted = bytes;
        }
        self.bytes = bytes;
        Ok(())
    }

    /// Holds so many at least, and some more for what comes next.
    pub fn cover(&mut self, bytes: usize) -> Result<(), NoRoom> {
        match bytes.checked_sub(self.bytes) {
            None | Some(0) => Ok(()),
            Some(_) if bytes <= SMALL => self.grow(SMALL - self.bytes),
            Some(more) => self.grow(more.max(STEP)),
        }
    }

    /// Holds so many, neither more nor fewer.
    pub fn resize(&mut self, bytes: usize) -> Result<(), NoRoom> {
        if bytes >= self.bytes {
            return self.grow(bytes - self.bytes);
        }
        self.shrink(self.bytes - bytes);
        Ok(())
    }

    /// Holds nothing any more.
    pub fn release(&mut self) {
        self.shrink(self.bytes);
    }

    /// Holds fewer.
    fn shrink(&mut self, by: usize) {
        self.bytes -= by;
        let by = by.min(self.counted);
        self.counted -= by;
        if let Some(memory) = self.account.memory.as_ref().filter(|_| by > 0) {
            memory.sums().remove(&self.account.owner, by);
        }
    }

    /// Bytes that count until the last of their clones is dropped.
    pub fn keep(self, bytes: Bytes) -> Bytes {
        if self.counted == 0 { bytes } else { Bytes::from_owner(Kept { bytes, _hold: self }) }
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.release();
    }
}

struct Kept {
    bytes: Bytes,
    _hold: Hold,
}

impl AsRef<[u8]> for Kept {
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
        let memory = RequestMemory::new(100_000);
        let account = memory.account(key("a"));
        let (mut one, mut other) = (account.hold(), account.hold());
        assert_eq!((one.grow(60_000), other.grow(50_000)), (Ok(()), Err(NoRoom)));
        assert_eq!((memory.used(), account.has_room(40_000), account.has_room(40_001)), (60_000, true, false));
        one.resize(40_000).unwrap();
        assert_eq!(other.grow(50_000), Ok(()));
        drop((one, other));
        assert_eq!(memory.used(), 0);
        assert!(memory.0.sums().of.is_empty());
    }

    #[test]
    fn the_small_find_room_whatever_the_large_hold() {
        let memory = RequestMemory::new(100_000);
        let account = memory.account(key("a"));
        let large = account.take_anyway(100_001);
        let mut small = account.hold();
        assert_eq!((small.grow(SMALL), account.has_room(SMALL)), (Ok(()), true));
        assert_eq!(small.grow(1), Err(NoRoom), "it is not small any more");
        drop(large);
        assert_eq!(small.grow(1), Ok(()));
    }

    #[test]
    fn bytes_that_are_kept_count_as_long_as_any_of_them_is_there() {
        let memory = RequestMemory::new(100_000);
        let account = memory.account(key("a"));
        let bytes = account.take(50_000).unwrap().keep(vec![7; 50_000].into());
        let part = bytes.slice(49_999..);
        drop(bytes);
        assert_eq!((memory.used(), &part[..]), (50_000, &[7][..]));
        drop(part);
        assert_eq!(memory.used(), 0);
    }

    #[test]
    fn what_grows_bit_by_bit_is_counted_in_steps_and_in_the_end_exactly() {
        let memory = RequestMemory::new(10 * STEP);
        let mut hold = memory.account(key("a")).hold();
        for bytes in 0..SMALL {
            hold.cover(bytes).unwrap();
        }
        assert_eq!(memory.used(), 0);
        hold.cover(SMALL + 1).unwrap();
        assert_eq!(memory.used(), SMALL + STEP);
        hold.resize(SMALL + 1).unwrap();
        assert_eq!(memory.used(), SMALL + 1);
        assert_eq!(hold.cover(10 * STEP + 1), Err(NoRoom));
    }

    #[test]
    fn one_caller_has_no_more_than_half_while_another_has_any() {
        let memory = RequestMemory::new(200_000);
        let (one, other) = (memory.account(key("a")), memory.account(key("b")));
        let held = other.take(20_000).unwrap();
        let share = one.take(100_000).unwrap();
        assert!(!one.has_room(SMALL + 1));
        assert!(other.has_room(80_000));
        drop(held);
        assert!(one.has_room(100_000));
        drop(share);
    }

    #[test]
    fn a_caller_who_has_it_all_has_half_once_another_was_turned_away() {
        let memory = RequestMemory::new(200_000);
        let (one, other) = (memory.account(key("a")), memory.account(key("b")));
        let mut all: Vec<_> = (0..4).map(|_| one.take(50_000).unwrap()).collect();
        assert!(!one.has_room(50_000), "that it turns itself away is no reason");
        assert_eq!(memory.0.sums().wanted_until, None);
        assert!(!other.has_room(50_000));
        // As fast as it may take again what it gives back, the other gets its part.
        for _ in 0..2 {
            drop(all.pop());
            assert!(!one.has_room(50_000));
        }
        assert!(other.has_room(50_000));
        let later = Instant::now() + WANTED;
        assert!(memory.0.sums().admit(&key("a"), 100_000, 200_000, later).is_ok(), "when nobody wants it any more");
    }

    #[tokio::test]
    async fn what_is_worked_on_counts_until_the_work_is_done_though_the_caller_has_gone() {
        use futures_util::FutureExt;
        let memory = RequestMemory::new(100_000);
        let account = memory.account(key("a"));
        let bytes = account.take(50_000).unwrap().keep(vec![0; 50_000].into());
        let ((go, may_go), (gone, has_gone)) = (std::sync::mpsc::channel(), std::sync::mpsc::channel());
        let work = account.off_thread(move || {
            may_go.recv().unwrap();
            drop(bytes);
            gone.send(()).unwrap();
        });
        assert_eq!(work.now_or_never(), None);
        assert_eq!(memory.used(), 50_000);
        go.send(()).unwrap();
        has_gone.recv().unwrap();
        assert_eq!(memory.used(), 0);
    }

    #[tokio::test]
    async fn who_has_much_work_for_the_box_delays_itself() {
        use futures_util::FutureExt;
        let memory = RequestMemory::new(1);
        let (flood, other) = (memory.account(key("a")), memory.account(key("b")));
        let turns = &memory.0.turns;
        let mut waiting: Vec<_> = (0..100).map(|_| Box::pin(turns.take(&flood.owner))).collect();
        let mut held: Vec<_> = waiting.iter_mut().filter_map(|turn| turn.as_mut().now_or_never()).collect();
        assert_eq!(held.len(), turns.cores);
        let mut next = Box::pin(turns.take(&other.owner));
        assert!(next.as_mut().now_or_never().is_none());
        // Those of the flood that wait for their own turns are not before it.
        held.pop();
        assert!(next.as_mut().now_or_never().is_some());
    }

    #[tokio::test]
    async fn callers_that_have_gone_are_forgotten() {
        let memory = RequestMemory::new(1);
        for caller in 0..10 * IDLE {
            drop(memory.0.turns.take(&key(&caller.to_string())).await);
        }
        assert!(memory.0.turns.of.lock().unwrap().len() <= IDLE);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn work_that_makes_much_of_little_is_done_by_as_many_threads_as_there_are_cores() {
        use std::sync::atomic::{AtomicUsize, Ordering};
        let account = RequestMemory::new(1).account(key("a"));
        let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let work = |_| {
            let (now, most) = (now.clone(), most.clone());
            account.off_thread(move || {
                most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                std::thread::sleep(Duration::from_millis(2));
                now.fetch_sub(1, Ordering::SeqCst);
            })
        };
        futures_util::future::join_all((0..200).map(work)).await;
        let cores = available_parallelism().map_or(1, usize::from);
        assert!(most.load(Ordering::SeqCst) <= cores, "{most:?}");
    }
}
