//! The queue of events on their way to the writer. Recording an event never waits.

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
use super::inference::{AuditCallGroup, CallCounts, CallRecord, RecordPolicy, Taggable};
use super::repeated::RepeatedEvents;
use super::tag::{Tag, TagContent, TagKey};

/// The most events and calls in the queue. An entry has less than 400 bytes.
const QUEUE_ENTRIES_MAX: usize = 32_768;

/// Further entries of the queue for events that are not calls: a flood of calls must not push them out.
const RESERVED_ENTRIES_MAX: usize = 8192;

/// The most keys that are counted apart within a minute. Beyond them the caller is not distinguished.
const COUNTED_KEYS_MAX: usize = 1024;

/// Content up to this size is tagged on the caller's thread: it takes a microsecond, which passing the content on takes
/// as well.
const INLINE_TAG_BYTES_MAX: usize = 2048;

/// The most bytes of content that wait to be tagged. Beyond them the caller's thread makes the tag.
const WAITING_BYTES_MAX: u64 = 64 << 20;

/// A handle to record events. Clones share one queue.
#[derive(Debug, Clone)]
pub struct AuditSink {
    shared: Arc<SinkState>,
}

/// The other end of the queue, for the one thread that writes. After it is dropped, recording does nothing.
#[derive(Debug)]
pub struct AuditQueue {
    shared: Arc<SinkState>,
}

#[derive(Debug)]
struct SinkState {
    policy: RecordPolicy,
    tag_key: ArcSwapOption<TagKey>,
    pending: Mutex<PendingEntries>,
    /// Under a separate lock, because a large read must not delay inference calls.
    features: Mutex<HashMap<FeatureKey, FeatureCounts>>,
    woken: Condvar,
    /// True after the writer has gone.
    closed: AtomicBool,
    content: AtomicU64,
    recorded: AtomicU64,
    lost: AtomicU64,
    /// The number of times that events were lost, here or by the writer.
    losses: AtomicU64,
    repeated: RepeatedEvents,
}

#[derive(Debug, Default)]
struct PendingEntries {
    entries: Vec<QueuedEntry>,
    counts: HashMap<AuditCallGroup, CallCounts>,
    lost: Option<LostEntries>,
    flushes: Vec<oneshot::Sender<()>>,
    is_urgent: bool,
    is_closing: bool,
}

/// One recorded item, with its time in milliseconds since the Unix epoch.
#[derive(Debug, Clone)]
pub struct QueuedEntry {
    pub at_ms: u64,
    pub what: AuditItem,
}

/// An event with its caller, or an inference call.
#[derive(Debug, Clone)]
pub enum AuditItem {
    Event(Principal, AuditEvent),
    /// An inference call that becomes a separate record.
    Call(Box<CallRecord>),
}

/// See [`AuditSink::mark`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AuditMark(u64);

/// The calls and events that did not fit into the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LostEntries {
    /// The time of the first loss, in milliseconds since the Unix epoch.
    pub since_ms: u64,
    /// Calls, of inference and of features.
    pub calls: u64,
    pub events: u64,
}

/// The entries that were waiting.
#[derive(Debug, Default)]
pub struct EntryBatch {
    /// In the order of recording.
    pub entries: Vec<QueuedEntry>,
    pub lost: Option<LostEntries>,
    /// To be notified when all of the batch is durable. Dropping them says that it is not.
    pub flushes: Vec<oneshot::Sender<()>>,
    /// True if something in it has to be on the disk at once.
    pub is_urgent: bool,
    /// True if no batch follows.
    pub is_last: bool,
}

impl AuditSink {
    /// Makes a sink and the other end of its queue.
    pub fn channel() -> (Self, AuditQueue) {
        Self::with_policy(RecordPolicy::default())
    }

    /// The same, with a policy for inference calls.
    pub fn with_policy(policy: RecordPolicy) -> (Self, AuditQueue) {
        let shared = Arc::new(SinkState {
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
            repeated: RepeatedEvents::default(),
        });
        (Self { shared: shared.clone() }, AuditQueue { shared })
    }

    /// A sink that drops everything, for commands that are not the daemon.
    pub fn to_nowhere() -> Self {
        Self::channel().0
    }

    /// Records an event of a caller. Never blocks; when the queue is full, the event is counted as lost.
    pub fn record(&self, principal: &Principal, event: AuditEvent) {
        let is_urgent = event.is_urgent();
        self.push(AuditItem::Event(principal.clone(), event), is_urgent, QUEUE_ENTRIES_MAX + RESERVED_ENTRIES_MAX);
    }

    /// Records an event of the daemon itself.
    pub fn record_own(&self, event: AuditEvent) {
        self.record(&Principal::Local, event);
    }

    /// The state of repeated events.
    pub(super) fn repeated(&self) -> &RepeatedEvents {
        &self.shared.repeated
    }

    /// Records an inference call: as a separate record, or counted with others of its minute, by the policy.
    pub fn record_call(&self, key: AuditCallGroup, us: u64, input: Option<Taggable>, output: Option<Taggable>) {
        if self.shared.closed.load(Ordering::Relaxed) {
            return;
        }
        if key.model.as_ref().is_some_and(|model| self.shared.policy.is_each_call(model)) {
            self.push(AuditItem::Call(Box::new(CallRecord { key, us, input, output })), false, QUEUE_ENTRIES_MAX);
            return;
        }
        let mut pending = self.shared.lock();
        let others = |key| AuditCallGroup { principal: Principal::Others, ..key };
        counts_of(&mut pending.counts, key, others).count(us);
        drop(pending);
        // The writer is not woken: it takes the counts once a minute.
        self.shared.recorded.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts rows of a feature view that were read or pushed, with the others of the minute. `tags` are those of their
    /// entities; empty without a key for tags.
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

    fn push(&self, what: AuditItem, is_urgent: bool, room: usize) {
        if self.shared.closed.load(Ordering::Relaxed) {
            return;
        }
        let at_ms = clock::unix_millis();
        let mut pending = self.shared.lock();
        if pending.entries.len() >= room {
            let lost = pending.lost.get_or_insert(LostEntries { since_ms: at_ms, calls: 0, events: 0 });
            match &what {
                AuditItem::Event(..) => {
                    lost.events += 1;
                    self.shared.losses.fetch_add(1, Ordering::Relaxed);
                }
                AuditItem::Call(call) => {
                    lost.calls += 1;
                    self.shared.release(call.waiting());
                }
            }
            drop(pending);
            self.shared.lost.fetch_add(1, Ordering::Relaxed);
            return;
        }

        // The writer takes further entries by itself, so it is woken only for the first or an urgent one: that costs a
        // system call.
        let wakes = pending.entries.is_empty() || (is_urgent && !pending.is_urgent);
        pending.entries.push(QueuedEntry { at_ms, what });
        pending.is_urgent |= is_urgent;
        drop(pending);
        self.shared.recorded.fetch_add(1, Ordering::Relaxed);
        if wakes {
            self.shared.woken.notify_one();
        }
    }

    /// True if the calls of a model are to be recorded with tags.
    pub fn wants_tags(&self, model: &ModelName) -> bool {
        !self.shared.closed.load(Ordering::Relaxed) && self.shared.policy.is_each_call(model)
    }

    /// The tag of a content, or the content itself for the writer to tag: whichever costs the caller less.
    pub fn taggable(&self, content: TagContent) -> Option<Taggable> {
        let size = content.size();
        let waiting = self.shared.content.load(Ordering::Relaxed);
        if size > INLINE_TAG_BYTES_MAX && waiting.saturating_add(size as u64) <= WAITING_BYTES_MAX {
            self.shared.content.fetch_add(size as u64, Ordering::Relaxed);
            return Some(Taggable::Content(content));
        }
        self.shared.tag_key.load().as_ref().map(|key| Taggable::Tag(key.of(&content)))
    }

    /// The current key for tags.
    pub fn tag_key(&self) -> Option<Arc<TagKey>> {
        self.shared.tag_key.load_full()
    }

    /// The current moment, after which losses count for [`Self::durable_since`].
    pub fn mark(&self) -> AuditMark {
        AuditMark(self.shared.losses.load(Ordering::Acquire))
    }

    /// Waits until it is known if all events recorded since `mark` are on the disk, and returns true if they are.
    pub async fn durable_since(&self, mark: AuditMark) -> bool {
        // The loss of a batch that failed before this call is counted by the time `durable` returns.
        self.durable().await && self.mark() == mark
    }

    /// Waits until everything in the queue is on the disk. `false` if it will not be.
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

    /// Asks the writer to end once it has written the queue.
    pub fn close(&self) {
        self.shared.lock().is_closing = true;
        self.shared.woken.notify_one();
    }

    /// The number of events and calls recorded since the start.
    pub fn recorded(&self) -> u64 {
        self.shared.recorded.load(Ordering::Relaxed)
    }

    /// The number of events and calls lost to a full queue since the start.
    pub fn lost(&self) -> u64 {
        self.shared.lost.load(Ordering::Relaxed)
    }
}

impl AuditQueue {
    /// A handle to record the writer's own events.
    pub fn sink(&self) -> AuditSink {
        AuditSink { shared: self.shared.clone() }
    }

    /// Sets the key for tags.
    pub fn set_tag_key(&self, key: Option<Arc<TagKey>>) {
        self.shared.tag_key.store(key);
    }

    /// Waits until something is recorded, at the latest until `until`. With `urgent` only an urgent event ends the
    /// wait.
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

    /// Takes the queue, without the counts of this minute.
    pub fn take(&mut self) -> EntryBatch {
        let mut pending = self.shared.lock();
        EntryBatch {
            entries: std::mem::take(&mut pending.entries),
            lost: pending.lost.take(),
            flushes: std::mem::take(&mut pending.flushes),
            is_urgent: std::mem::take(&mut pending.is_urgent),
            is_last: pending.is_closing,
        }
    }

    /// Takes the events that stand for repeated ones without a record; all of them when it is the last time.
    pub fn take_untold(&self, now: Instant, is_last: bool) -> Vec<(Principal, AuditEvent)> {
        let untold = self.shared.repeated.due(now, is_last);
        self.shared.recorded.fetch_add(untold.len() as u64, Ordering::Relaxed);
        untold
    }

    /// Takes the calls counted since the last time.
    pub fn take_counts(&mut self) -> HashMap<AuditCallGroup, CallCounts> {
        std::mem::take(&mut self.shared.lock().counts)
    }

    /// Takes the reads and pushes of features counted since the last time.
    pub fn take_features(&mut self) -> HashMap<FeatureKey, FeatureCounts> {
        std::mem::take(&mut self.shared.features())
    }

    /// Notes that taken events were lost. To be called before their callers are notified.
    pub fn events_lost(&self) {
        self.shared.losses.fetch_add(1, Ordering::Release);
    }

    /// Notes that content of `size` bytes is tagged and has been dropped.
    pub fn tagged(&self, size: usize) {
        self.shared.release(size);
    }

    /// Takes the next event that is not a call, for tests.
    pub fn try_next(&mut self) -> Option<AuditEvent> {
        let mut pending = self.shared.lock();
        let next = pending.entries.iter().position(|entry| matches!(entry.what, AuditItem::Event(..)))?;
        match pending.entries.remove(next).what {
            AuditItem::Event(_, event) => Some(event),
            AuditItem::Call(_) => None,
        }
    }
}

impl Drop for AuditQueue {
    fn drop(&mut self) {
        self.shared.closed.store(true, Ordering::Relaxed);
        // Dropping the flushes reports to their callers that nothing is durable.
        let mut pending = self.shared.lock();
        pending.flushes.clear();
        pending.entries.clear();
    }
}

impl SinkState {
    /// Subtracts content that does not wait to be tagged any more.
    fn release(&self, size: usize) {
        let _ = self
            .content
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |waiting| Some(waiting.saturating_sub(size as u64)));
    }

    fn features(&self) -> MutexGuard<'_, HashMap<FeatureKey, FeatureCounts>> {
        self.features.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock(&self) -> MutexGuard<'_, PendingEntries> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The counts of a key; beyond [`COUNTED_KEYS_MAX`], those of all `others` of its kind.
fn counts_of<K: Eq + Hash, C: Default>(counts: &mut HashMap<K, C>, key: K, others: impl FnOnce(K) -> K) -> &mut C {
    let is_crowded = counts.len() >= COUNTED_KEYS_MAX && !counts.contains_key(&key);
    counts.entry(if is_crowded { others(key) } else { key }).or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::audit_event::inference::{CallOutcome, RecordDetail};
    use bytes::Bytes;
    use std::time::Duration;

    fn key(model: &str, uid: u32) -> AuditCallGroup {
        let model = Some(model.parse().unwrap());
        AuditCallGroup { model, version: None, digest: None, principal: Principal::User(uid), outcome: CallOutcome::Ok }
    }

    #[test]
    fn a_full_queue_loses_calls_before_events_counted_and_never_blocks() {
        let (sink, mut queue) =
            AuditSink::with_policy(RecordPolicy { detail: RecordDetail::Calls, ..RecordPolicy::default() });
        for _ in 0..QUEUE_ENTRIES_MAX + 3 {
            sink.record_call(key("m", 1), 7, None, None);
        }
        for _ in 0..RESERVED_ENTRIES_MAX + 2 {
            sink.record_own(AuditEvent::Stopped);
        }
        let batch = queue.take();
        assert_eq!(batch.entries.len(), QUEUE_ENTRIES_MAX + RESERVED_ENTRIES_MAX);
        let lost = batch.lost.unwrap();
        assert_eq!((lost.calls, lost.events), (3, 2));
        assert_eq!((sink.recorded(), sink.lost()), ((QUEUE_ENTRIES_MAX + RESERVED_ENTRIES_MAX) as u64, 5));
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
        // The writer fails before the caller asks.
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
            AuditSink::with_policy(RecordPolicy { calls: ["each".parse().unwrap()].into(), ..RecordPolicy::default() });
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
        let others = AuditCallGroup { principal: Principal::Others, ..key("m", 0) };
        assert_eq!((counts.len(), counts[&key("m", 0)].calls), (COUNTED_KEYS_MAX + 1, 2));
        assert_eq!(counts[&others].calls, 2000 - COUNTED_KEYS_MAX as u64);
    }

    #[test]
    fn content_waits_for_its_tag_only_while_there_is_memory_for_it() {
        let (sink, queue) = AuditSink::channel();
        queue.set_tag_key(Some(Arc::new(TagKey::new(1, [7; 32]))));
        let photograph = |size: usize| TagContent::Photograph(Bytes::from(vec![0; size]));
        let waits = |size| matches!(sink.taggable(photograph(size)), Some(Taggable::Content(_)));
        assert!(!waits(INLINE_TAG_BYTES_MAX));
        let half = usize::try_from(WAITING_BYTES_MAX / 2).unwrap();
        assert!(waits(half) && waits(half) && !waits(INLINE_TAG_BYTES_MAX + 1));
        queue.tagged(half);
        assert!(waits(INLINE_TAG_BYTES_MAX + 1));
    }

    #[test]
    fn what_is_lost_holds_no_memory() {
        let (sink, _queue) =
            AuditSink::with_policy(RecordPolicy { detail: RecordDetail::Calls, ..RecordPolicy::default() });
        for _ in 0..QUEUE_ENTRIES_MAX {
            sink.record_call(key("m", 1), 7, None, None);
        }
        let content = sink.taggable(TagContent::Photograph(Bytes::from_static(&[0; INLINE_TAG_BYTES_MAX + 1])));
        assert_eq!(sink.shared.content.load(Ordering::Relaxed), INLINE_TAG_BYTES_MAX as u64 + 1);
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
        // The writer has gone: recording is not an error, and nothing becomes durable.
        sink.record_own(AuditEvent::Stopped);
        let durable = tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(sink.durable());
        assert!(!durable && sink.recorded() == 2);
    }
}
