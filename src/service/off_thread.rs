//! Work that would block the async threads, run on the blocking pool. Unpacking and decoding for callers takes turns:
//! as many threads do it as there are cores.

use std::collections::HashMap;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::Pin;
use std::sync::{Arc, LazyLock, Mutex, PoisonError, mpsc};
use std::thread::available_parallelism;

use ledge_base::memory_budget::MemoryAccount;
use ledge_base::principal::Principal;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

/// The most idle callers that are kept.
const IDLE_CALLERS_MAX: usize = 64;

/// The permits for work with a large output, one for each core.
static TURNS: LazyLock<CallerPermits> =
    LazyLock::new(|| CallerPermits::new(available_parallelism().map_or(1, usize::from)));

/// Runs work with a large output, such as unpacking, on the blocking pool, and returns its result. The work runs to its
/// end even after the caller has gone. Callers on this box do not wait for a permit, as their memory is not counted.
pub async fn off_thread<T: Send + 'static>(account: &MemoryAccount, work: impl FnOnce() -> T + Send + 'static) -> T {
    let turn = match account.counted_owner() {
        Some(owner) => Some(TURNS.take(owner).await),
        None => None,
    };
    blocking(move || {
        let _turn = turn;
        work()
    })
    .await
}

/// Runs `work` to its end on a thread of the blocking pool and returns its result. A panic in it continues here.
pub async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|panic| resume_unwind(panic.into_panic()))
}

/// A thread of its own for work on one state, such as the files of a share that may hang: the blocking pool, which all
/// share, would run out of threads. The thread ends with the last clone.
#[derive(Debug)]
pub struct WorkThread<S>(mpsc::Sender<WorkItem<S>>);

type WorkItem<S> = Box<dyn FnOnce(&mut S) + Send>;

impl<S> Clone for WorkThread<S> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<S: Send + 'static> WorkThread<S> {
    /// Starts the thread.
    pub fn spawn(name: &str, mut state: S) -> io::Result<Self> {
        let (sender, work) = mpsc::channel::<WorkItem<S>>();
        std::thread::Builder::new().name(name.to_owned()).spawn(move || {
            for work in work {
                work(&mut state);
            }
        })?;
        Ok(Self(sender))
    }

    /// Runs `work` after what was passed before, and returns its result. A panic in it continues here.
    pub async fn run<T: Send + 'static>(&self, work: impl FnOnce(&mut S) -> T + Send + 'static) -> T {
        let (sender, result) = oneshot::channel();
        // Sending fails only without the thread, which lives as long as this sender.
        let _ = self.0.send(Box::new(move |state| {
            // Nobody may wait any more.
            let _ = sender.send(catch_unwind(AssertUnwindSafe(|| work(state))));
        }));
        match result.await {
            Ok(result) => result.unwrap_or_else(|panic| resume_unwind(panic)),
            Err(_) => std::future::pending().await,
        }
    }
}

/// Runs a future to its end on this thread, which has no runtime: for command lines.
pub fn block_on<F: Future>(future: F) -> io::Result<F::Output> {
    // tokio compiles a future for each kind of runtime. Behind a pointer it is compiled once.
    fn run(future: Pin<Box<dyn Future<Output = ()> + '_>>) -> io::Result<()> {
        tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(future);
        Ok(())
    }

    let mut output = None;
    run(Box::pin(async { output = Some(future.await) }))?;
    output.ok_or_else(|| io::Error::other("the runtime ended before the future"))
}

/// A limited number of permits. A caller has at most that many permits, and that many requests in the common queue, so
/// that a caller with much work delays only itself.
#[derive(Debug)]
pub struct CallerPermits {
    at_a_time: usize,
    all: Arc<Semaphore>,
    of: Mutex<HashMap<Principal, Arc<Semaphore>>>,
}

/// A permit; dropping it returns it.
pub type CallerPermit = [Option<OwnedSemaphorePermit>; 2];

impl CallerPermits {
    /// Permits for `at_a_time` tasks at a time.
    pub fn new(at_a_time: usize) -> Self {
        Self { at_a_time, all: Arc::new(Semaphore::new(at_a_time)), of: Mutex::default() }
    }

    /// Waits for a permit for `owner`.
    pub async fn take(&self, owner: &Principal) -> CallerPermit {
        // No semaphore is ever closed.
        let own = self.own(owner).acquire_owned().await.ok();
        [own, self.all.clone().acquire_owned().await.ok()]
    }

    fn own(&self, owner: &Principal) -> Arc<Semaphore> {
        // Nothing panics under this lock.
        let mut of = self.of.lock().unwrap_or_else(PoisonError::into_inner);
        if of.len() >= IDLE_CALLERS_MAX {
            of.retain(|_, turns| Arc::strong_count(turns) > 1);
        }
        of.entry(owner.clone()).or_insert_with(|| Arc::new(Semaphore::new(self.at_a_time))).clone()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use futures_util::FutureExt;
    use ledge_base::memory_budget::MemoryBudget;

    use super::*;

    fn key(name: &str) -> Principal {
        Principal::Key(name.into())
    }

    #[tokio::test]
    async fn what_is_worked_on_counts_until_the_work_is_done_though_the_caller_has_gone() {
        let memory = MemoryBudget::new(100_000);
        let account = memory.account(key("a"));
        let bytes = account.take(50_000).unwrap().attach(vec![0; 50_000].into());
        let ((go, may_go), (gone, has_gone)) = (std::sync::mpsc::channel(), std::sync::mpsc::channel());
        let work = off_thread(&account, move || {
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
    async fn a_thread_of_its_own_keeps_its_state_and_survives_a_panic() {
        let thread = WorkThread::spawn("test", 1).unwrap();
        assert_eq!(thread.run(|state| std::mem::replace(state, 2)).await, 1);
        let panicked = std::panic::AssertUnwindSafe(thread.run(|_| panic!("on purpose"))).catch_unwind().await;
        assert!(panicked.is_err());
        assert_eq!(thread.clone().run(|state| *state).await, 2);
    }

    #[tokio::test]
    async fn who_has_much_work_for_the_box_delays_itself() {
        let turns = CallerPermits::new(2);
        let flood = key("a");
        let mut waiting: Vec<_> = (0..100).map(|_| Box::pin(turns.take(&flood))).collect();
        let mut held: Vec<_> = waiting.iter_mut().filter_map(|turn| turn.as_mut().now_or_never()).collect();
        assert_eq!(held.len(), 2);
        let other = key("b");
        let mut next = Box::pin(turns.take(&other));
        assert!(next.as_mut().now_or_never().is_none());
        // The rest of the flood waits for permits of its own caller, and not ahead of the other caller.
        held.pop();
        assert!(next.as_mut().now_or_never().is_some());
    }

    #[tokio::test]
    async fn callers_that_have_gone_are_forgotten() {
        let turns = CallerPermits::new(2);
        for caller in 0..10 * IDLE_CALLERS_MAX {
            drop(turns.take(&key(&caller.to_string())).await);
        }
        assert!(turns.of.lock().unwrap().len() <= IDLE_CALLERS_MAX);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn work_that_makes_much_of_little_is_done_by_as_many_threads_as_there_are_cores() {
        let account = MemoryBudget::new(1).account(key("a"));
        let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let work = |_| {
            let (now, most) = (now.clone(), most.clone());
            off_thread(&account, move || {
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
