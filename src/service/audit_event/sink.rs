//! Where events wait until they are written. Whoever records one waits for nobody.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use arc_swap::ArcSwapOption;
use ledge_base::clock;
use ledge_base::names::ModelName;
use ledge_base::principal::Principal;
use tokio::sync::oneshot;

use super::AuditEvent;
use super::feature::{FeatureCounts, FeatureKey};
use super::inference::{CallCounts, CallKey, CallRecord, Policy, Taggable};
use super::seldom::Seldom;
use super::tag::{Content, Tag, TagKey};

/// How many events and calls may wait. One is under 400 bytes.
const QUEUE: usize = 32_768;

/// Beyond the queue: how many events that are no calls may wait. A flood of calls must not push them out.
const RESERVE: usize = 8192;

/// How many keys are counted apart within a minute; beyond them the caller is left out.
const KEYS: usize = 1024;

/// Up to this size a tag is made by whoever records: it takes a microsecond, as long as handing the content on.
const INLINE: usize = 2048;

/// How many bytes of content may wait to be tagged. Beyond them whoever records makes the tag.
const WAITING_CONTENT: u64 = 64 << 20;

/// A handle to record events with. Clones share one queue.
#[derive(Debug, Clone)]
pub struct AuditSink {
    shared: Arc<Shared>,
}

/// The other end: what is recorded, for one thread to write. Once it is dropped, recording does nothing.
#[derive(Debug)]
pub struct AuditQueue {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    policy: Policy,
    tag_key: ArcSwapOption<TagKey>,
    pending: Mutex<Pending>,
    /// Apart from the others: a large read must not keep inference calls waiting.
    features: Mutex<HashMap<FeatureKey, FeatureCounts>>,
    woken: Condvar,
    /// Nobody takes events any more.
    closed: AtomicBool,
    content: AtomicU64,
    recorded: AtomicU64,
    lost: AtomicU64,
    /// How often events were lost, here or by the writer.
    losses: AtomicU64,
    seldom: Seldom,
}

#[derive(Debug, Default)]
struct Pending {
    entries: Vec<Entry>,
    counts: HashMap<CallKey, CallCounts>,
    lost: Option<Lost>,
    flushes: Vec<oneshot::Sender<()>>,
    is_urgent: bool,
    is_closing: bool,
}

/// What was recorded, and when, in milliseconds since the Unix epoch.
#[derive(Debug, Clone)]
pub struct Entry {
    pub at_ms: u64,
    pub what: Recorded,
}

/// An event of somebody, or an inference call.
#[derive(Debug, Clone)]
pub enum Recorded {
    Event(Principal, AuditEvent),
    /// An inference call that becomes a record of its own.
    Call(Box<CallRecord>),
}

/// See [`AuditSink::mark`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mark(u64);

/// What found no place in the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lost {
    /// When the first was lost, in milliseconds since the Unix epoch.
    pub since_ms: u64,
    /// Calls, of inference and of features.
    pub calls: u64,
    pub events: u64,
}

/// What was waiting.
#[derive(Debug, Default)]
pub struct Batch {
    /// In the order in which they were recorded.
    pub entries: Vec<Entry>,
    pub lost: Option<Lost>,
    /// To be told when all of the batch is durable; dropped, they say that it is not.
    pub flushes: Vec<oneshot::Sender<()>>,
    /// Whether something of it has to be on the disk at once.
    pub is_urgent: bool,
    /// Whether nothing comes after it.
    pub is_last: bool,
}

impl AuditSink {
    /// A sink and the other end of its queue.
    pub fn channel() -> (Self, AuditQueue) {
        Self::with_policy(Policy::default())
    }

    /// The same, with a policy for inference calls.
    pub fn with_policy(policy: Policy) -> (Self, AuditQueue) {
        let shared = Arc::new(Shared {
            policy,
            tag_key: ArcSwapOption::empty(),
            pending: Mutex::default(),
            features: Mutex::default(),
            woken: Condvar::new(),
            closed: AtomicBool::new(false),
            content: AtomicU64::new(0),
            recorded: AtomicU64::new(0),
            lost: AtomicU64::new(0),
            losses: AtomicU64::new(0),
            seldom: Seldom::default(),
        });
        (Self { shared: shared.clone() }, AuditQueue { shared })
    }

    /// A sink that keeps nothing, for a command line that is no daemon.
    pub fn to_nowhere() -> Self {
        Self::channel().0
    }

    /// Records an event of somebody. Never blocks; an event that finds the queue full is counted as lost.
    pub fn record(&self, principal: &Principal, event: AuditEvent) {
        let is_urgent = event.is_urgent();
        self.push(Recorded::Event(principal.clone(), event), is_urgent, QUEUE + RESERVE);
    }

    /// Records an event of the daemon itself.
    pub fn record_own(&self, event: AuditEvent) {
        self.record(&Principal::Local, event);
    }

    /// What is told of events that come again and again.
    pub(super) fn seldom(&self) -> &Seldom {
        &self.shared.seldom
    }

    /// Records an inference call: as a record of its own, or counted with others of its minute, as the policy says.
    pub fn record_call(&self, key: CallKey, us: u64, input: Option<Taggable>, output: Option<Taggable>) {
        if self.shared.closed.load(Ordering::Relaxed) {
            return;
        }
        if key.model.as_ref().is_some_and(|model| self.shared.policy.is_each_call(model)) {
            self.push(Recorded::Call(Box::new(CallRecord { key, us, input, output })), false, QUEUE);
            return;
        }
        let mut pending = self.shared.lock();
        let others = |key| CallKey { principal: Principal::Others, ..key };
        counts_of(&mut pending.counts, key, others).count(us);
        drop(pending);
        // Nobody is woken: the writer asks for the counts by the minute.
        self.shared.recorded.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts rows of a feature view that were read or pushed with the others of the minute. `tags` are those of their
    /// entities; there are none as long as there is no key for tags.
    pub fn record_features(&self, key: FeatureKey, calls: u64, rows: u64, tags: &[Tag]) {
        if self.shared.closed.load(Ordering::Relaxed) {
            return;
        }
        let entities_max = self.shared.policy.feature_entities as usize;
        let mut features = self.shared.features();
        let others = |key| FeatureKey { principal: Principal::Others, ..key };
        counts_of(&mut features, key, others).count(calls, rows, tags, entities_max);
        drop(features);
        self.shared.recorded.fetch_add(calls, Ordering::Relaxed);
    }

    fn push(&self, what: Recorded, is_urgent: bool, room: usize) {
        if self.shared.closed.load(Ordering::Relaxed) {
            return;
        }
        let at_ms = clock::unix_millis();
        let mut pending = self.shared.lock();
        if pending.entries.len() >= room {
            let lost = pending.lost.get_or_insert(Lost { since_ms: at_ms, calls: 0, events: 0 });
            match &what {
                Recorded::Event(..) => {
                    lost.events += 1;
                    self.shared.losses.fetch_add(1, Ordering::Relaxed);
                }
                Recorded::Call(call) => {
                    lost.calls += 1;
                    self.shared.release(call.waiting());
                }
            }
            drop(pending);
            self.shared.lost.fetch_add(1, Ordering::Relaxed);
            return;
        }
        // The writer looks again by itself while there is something: a wake-up costs a system call.
        let wakes = pending.entries.is_empty() || (is_urgent && !pending.is_urgent);
        pending.entries.push(Entry { at_ms, what });
        pending.is_urgent |= is_urgent;
        drop(pending);
        self.shared.recorded.fetch_add(1, Ordering::Relaxed);
        if wakes {
            self.shared.woken.notify_one();
        }
    }

    /// Whether the calls of a model are to be recorded with tags.
    pub fn wants_tags(&self, model: &ModelName) -> bool {
        !self.shared.closed.load(Ordering::Relaxed) && self.shared.policy.is_each_call(model)
    }

    /// The tag of a content, or the content, to be tagged by the writer: whichever costs the caller less.
    pub fn taggable(&self, content: Content) -> Option<Taggable> {
        let size = content.size();
        let waiting = self.shared.content.load(Ordering::Relaxed);
        if size > INLINE && waiting.saturating_add(size as u64) <= WAITING_CONTENT {
            self.shared.content.fetch_add(size as u64, Ordering::Relaxed);
            return Some(Taggable::Content(content));
        }
        self.shared.tag_key.load().as_ref().map(|key| Taggable::Tag(key.of(&content)))
    }

    /// The key that tags are made with now.
    pub fn tag_key(&self) -> Option<Arc<TagKey>> {
        self.shared.tag_key.load_full()
    }

    /// A moment from which on losses count for [`Self::durable_since`].
    pub fn mark(&self) -> Mark {
        Mark(self.shared.losses.load(Ordering::Acquire))
    }

    /// Whether all events recorded since `mark` are on the disk; waits until that is known.
    pub async fn durable_since(&self, mark: Mark) -> bool {
        // A batch that failed before this was called has its loss counted by the time the answer comes.
        self.durable().await && self.mark() == mark
    }

    /// Waits until everything that waits to be written is on the disk. `false` when it is not going to be.
    pub async fn durable(&self) -> bool {
        let (told, waiting) = oneshot::channel();
        {
            let mut pending = self.shared.lock();
            if self.shared.closed.load(Ordering::Relaxed) {
                return false;
            }
            pending.flushes.push(told);
            pending.is_urgent = true;
        }
        self.shared.woken.notify_one();
        waiting.await.is_ok()
    }

    /// Asks the writer to end once it has written what is recorded.
    pub fn close(&self) {
        self.shared.lock().is_closing = true;
        self.shared.woken.notify_one();
    }

    /// Events and calls taken since the start.
    pub fn recorded(&self) -> u64 {
        self.shared.recorded.load(Ordering::Relaxed)
    }

    /// Those that found the queue full since the start.
    pub fn lost(&self) -> u64 {
        self.shared.lost.load(Ordering::Relaxed)
    }
}

impl AuditQueue {
    /// A handle to record with, for the writer's own events.
    pub fn sink(&self) -> AuditSink {
        AuditSink { shared: self.shared.clone() }
    }

    /// Tags are made with this key from now on.
    pub fn set_tag_key(&self, key: Option<Arc<TagKey>>) {
        self.shared.tag_key.store(key);
    }

    /// Waits until something is recorded, at the latest until `until`. With `urgent` it is something that cannot wait.
    pub fn wait(&self, until: Instant, urgent: bool) {
        let mut pending = self.shared.lock();
        loop {
            let enough = pending.is_urgent || pending.is_closing || (!urgent && !pending.entries.is_empty());
            let left = until.saturating_duration_since(Instant::now());
            if enough || left.is_zero() {
                return;
            }
            (pending, _) = self.shared.woken.wait_timeout(pending, left).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Takes what waits, but for the counts of this minute.
    pub fn take(&mut self) -> Batch {
        let mut pending = self.shared.lock();
        Batch {
            entries: std::mem::take(&mut pending.entries),
            lost: pending.lost.take(),
            flushes: std::mem::take(&mut pending.flushes),
            is_urgent: std::mem::take(&mut pending.is_urgent),
            is_last: pending.is_closing,
        }
    }

    /// Takes what is to be recorded of denials that have no record yet; all of it when it is the last time.
    pub fn take_untold(&self, now: Instant, is_last: bool) -> Vec<(Principal, AuditEvent)> {
        let untold = self.shared.seldom.due(now, is_last);
        self.shared.recorded.fetch_add(untold.len() as u64, Ordering::Relaxed);
        untold
    }

    /// Takes the calls that were counted since it was last asked.
    pub fn take_counts(&mut self) -> HashMap<CallKey, CallCounts> {
        std::mem::take(&mut self.shared.lock().counts)
    }

    /// Takes the reads and pushes of features that were counted since it was last asked.
    pub fn take_features(&mut self) -> HashMap<FeatureKey, FeatureCounts> {
        std::mem::take(&mut self.shared.features())
    }

    /// Events that were taken became no records. To be called before anybody hears what became of them.
    pub fn events_lost(&self) {
        self.shared.losses.fetch_add(1, Ordering::Release);
    }

    /// The content of these bytes is tagged, and needs no memory any more.
    pub fn tagged(&self, size: usize) {
        self.shared.release(size);
    }

    /// The next event that waits and is no call, for tests.
    pub fn try_next(&mut self) -> Option<AuditEvent> {
        let mut pending = self.shared.lock();
        let next = pending.entries.iter().position(|entry| matches!(entry.what, Recorded::Event(..)))?;
        match pending.entries.remove(next).what {
            Recorded::Event(_, event) => Some(event),
            Recorded::Call(_) => None,
        }
    }
}

impl Drop for AuditQueue {
    fn drop(&mut self) {
        self.shared.closed.store(true, Ordering::Relaxed);
        // What waits to hear that it is durable hears that it is not.
        let mut pending = self.shared.lock();
        pending.flushes.clear();
        pending.entries.clear();
    }
}

impl Shared {
    /// Contents of these bytes do not wait any more.
    fn release(&self, size: usize) {
        let _ = self
            .content
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |waiting| Some(waiting.saturating_sub(size as u64)));
    }

    fn features(&self) -> MutexGuard<'_, HashMap<FeatureKey, FeatureCounts>> {
        self.features.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock(&self) -> MutexGuard<'_, Pending> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The counts of a key; beyond [`KEYS`], those of all `others` of its kind.
fn counts_of<K: Eq + Hash, C: Default>(counts: &mut HashMap<K, C>, key: K, others: impl FnOnce(K) -> K) -> &mut C {
    let is_crowded = counts.len() >= KEYS && !counts.contains_key(&key);
    counts.entry(if is_crowded { others(key) } else { key }).or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::audit_event::inference::{Detail, Outcome};
    use bytes::Bytes;
    use std::time::Duration;

    fn key(model: &str, uid: u32) -> CallKey {
        let model = Some(model.parse().unwrap());
        CallKey { model, version: None, digest: None, principal: Principal::User(uid), outcome: Outcome::Ok }
    }

    #[test]
    fn a_full_queue_loses_calls_before_events_counted_and_never_blocks() {
        let (sink, mut queue) = AuditSink::with_policy(Policy { detail: Detail::Calls, ..Policy::default() });
        for _ in 0..QUEUE + 3 {
            sink.record_call(key("m", 1), 7, None, None);
        }
        for _ in 0..RESERVE + 2 {
            sink.record_own(AuditEvent::Stopped);
        }
        let batch = queue.take();
        assert_eq!(batch.entries.len(), QUEUE + RESERVE);
        let lost = batch.lost.unwrap();
        assert_eq!((lost.calls, lost.events), (3, 2));
        assert_eq!((sink.recorded(), sink.lost()), ((QUEUE + RESERVE) as u64, 5));
        assert!(queue.take().lost.is_none());
    }

    #[tokio::test]
    async fn an_event_that_was_lost_before_its_caller_asked_is_not_durable() {
        let (sink, mut queue) = AuditSink::channel();
        let tell = |queue: &mut AuditQueue| queue.take().flushes.into_iter().for_each(|flush| flush.send(()).unwrap());
        let mark = sink.mark();
        sink.record_own(AuditEvent::Stopped);
        let ((), durable) = {
            let waiting = sink.durable_since(mark);
            tokio::pin!(waiting);
            assert!(futures_util::poll!(&mut waiting).is_pending());
            (tell(&mut queue), waiting.await)
        };
        assert!(durable);
        // The writer was quicker than the one who asks.
        sink.record_own(AuditEvent::Stopped);
        let _ = queue.take();
        queue.events_lost();
        let waiting = sink.durable_since(mark);
        tokio::pin!(waiting);
        assert!(futures_util::poll!(&mut waiting).is_pending());
        tell(&mut queue);
        assert!(!waiting.await);
    }

    #[test]
    fn calls_are_counted_by_caller_model_and_outcome() {
        let (sink, mut queue) =
            AuditSink::with_policy(Policy { calls: ["each".parse().unwrap()].into(), ..Policy::default() });
        for us in [5, 7] {
            sink.record_call(key("m", 1), us, None, None);
            sink.record_call(key("each", 1), us, None, None);
        }
        sink.record_call(key("m", 2), 1, None, None);
        assert_eq!(queue.take().entries.len(), 2);
        let counts = queue.take_counts();
        assert_eq!(counts[&key("m", 1)], CallCounts { calls: 2, us: 12, us_max: 7 });
        assert_eq!((counts.len(), counts[&key("m", 2)].calls), (2, 1));
        assert!(queue.take_counts().is_empty());
    }

    #[test]
    fn too_many_callers_are_counted_together() {
        let (sink, mut queue) = AuditSink::channel();
        for uid in 0..2000 {
            sink.record_call(key("m", uid), 1, None, None);
        }
        sink.record_call(key("m", 0), 1, None, None);
        let counts = queue.take_counts();
        let others = CallKey { principal: Principal::Others, ..key("m", 0) };
        assert_eq!((counts.len(), counts[&key("m", 0)].calls), (KEYS + 1, 2));
        assert_eq!(counts[&others].calls, 2000 - KEYS as u64);
    }

    #[test]
    fn content_waits_for_its_tag_only_while_there_is_memory_for_it() {
        let (sink, queue) = AuditSink::channel();
        queue.set_tag_key(Some(Arc::new(TagKey::new(1, [7; 32]))));
        let photograph = |size: usize| Content::Photograph(Bytes::from(vec![0; size]));
        let waits = |size| matches!(sink.taggable(photograph(size)), Some(Taggable::Content(_)));
        assert!(!waits(INLINE));
        let half = usize::try_from(WAITING_CONTENT / 2).unwrap();
        assert!(waits(half) && waits(half) && !waits(INLINE + 1));
        queue.tagged(half);
        assert!(waits(INLINE + 1));
    }

    #[test]
    fn what_is_lost_holds_no_memory() {
        let (sink, _queue) = AuditSink::with_policy(Policy { detail: Detail::Calls, ..Policy::default() });
        for _ in 0..QUEUE {
            sink.record_call(key("m", 1), 7, None, None);
        }
        let content = sink.taggable(Content::Photograph(Bytes::from_static(&[0; INLINE + 1])));
        assert_eq!(sink.shared.content.load(Ordering::Relaxed), INLINE as u64 + 1);
        sink.record_call(key("m", 1), 7, content, None);
        assert_eq!((sink.lost(), sink.shared.content.load(Ordering::Relaxed)), (1, 0));
    }

    #[test]
    fn what_is_urgent_wakes_the_writer_and_other_things_wait_for_it() {
        let (sink, mut queue) = AuditSink::channel();
        let waiting = std::thread::spawn(move || {
            queue.wait(Instant::now() + Duration::from_mins(1), true);
            queue.take()
        });
        let opened = AuditEvent::ConnectionOpened {
            destination: "a:1".into(),
            region: "eu".into(),
            purpose: "mqtt".into(),
            others: 0,
        };
        sink.record_own(opened);
        sink.record_own(AuditEvent::Stopped);
        let batch = waiting.join().unwrap();
        assert!(batch.is_urgent && batch.entries.len() == 2);
        // Nobody is left to write: recording is no mistake, and nothing will be durable.
        sink.record_own(AuditEvent::Stopped);
        let durable = tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(sink.durable());
        assert!(!durable && sink.recorded() == 2);
    }
}
