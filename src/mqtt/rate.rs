//! "At most so many a second, and keep the newest": the limit of each topic of a binding. Pure: the time is passed in.

use std::collections::{BTreeSet, HashMap};
use std::time::{Duration, Instant};

use super::topics::TopicName;

/// For each topic, lets one item go and then keeps the newest until the next one may.
///
/// Two items of a topic are at least the interval apart, so that in any time `t` at most `rate * t + 1` go. A topic that
/// was idle for longer is forgotten; of those that were not there are at most `max_topics`.
#[derive(Debug)]
pub struct Newest<T> {
    interval: Duration,
    max_topics: usize,
    topics: HashMap<TopicName, Slot<T>>,
    /// The topics that keep an item, by when it may go.
    kept: BTreeSet<(Instant, TopicName)>,
    /// The others, by when they can be forgotten.
    idle: BTreeSet<(Instant, TopicName)>,
}

#[derive(Debug)]
struct Slot<T> {
    /// When the next item may go.
    next: Instant,
    kept: Option<T>,
}

/// What becomes of an item.
#[derive(Debug, PartialEq, Eq)]
pub enum Offer<T> {
    Run(T),
    /// It goes later, unless a newer one comes.
    Kept {
        /// The older one that was kept in its place: it never goes.
        replaced: Option<T>,
    },
    /// There are too many topics: it never goes.
    Refused(T),
}

impl<T> Newest<T> {
    /// A limit of one item of each topic in every `interval`.
    pub fn new(interval: Duration, max_topics: usize) -> Self {
        Self { interval, max_topics, topics: HashMap::new(), kept: BTreeSet::new(), idle: BTreeSet::new() }
    }

    /// Takes a new item of `topic`.
    pub fn offer(&mut self, topic: &TopicName, item: T, now: Instant) -> Offer<T> {
        self.forget(now);
        if let Some(slot) = self.topics.get_mut(topic) {
            let replaced = slot.kept.replace(item);
            if replaced.is_none() {
                self.idle.remove(&(slot.next, topic.clone()));
                self.kept.insert((slot.next, topic.clone()));
            }
            return Offer::Kept { replaced };
        }
        if self.topics.len() >= self.max_topics {
            return Offer::Refused(item);
        }
        let next = now + self.interval;
        self.topics.insert(topic.clone(), Slot { next, kept: None });
        self.idle.insert((next, topic.clone()));
        Offer::Run(item)
    }

    /// The kept items that may go now.
    pub fn due(&mut self, now: Instant) -> Vec<T> {
        self.forget(now);
        let mut due = Vec::new();
        while self.kept.first().is_some_and(|(next, _)| *next <= now)
            && let Some((_, topic)) = self.kept.pop_first()
        {
            if let Some(slot) = self.topics.get_mut(&topic) {
                slot.next = now + self.interval;
                due.extend(slot.kept.take());
                self.idle.insert((slot.next, topic));
            }
        }
        due
    }

    /// When [`Self::due`] has something to give.
    pub fn next_due(&self) -> Option<Instant> {
        self.kept.first().map(|(next, _)| *next)
    }

    /// Forgets the topics that may send at once again.
    fn forget(&mut self, now: Instant) {
        while self.idle.first().is_some_and(|(next, _)| *next <= now)
            && let Some((_, topic)) = self.idle.pop_first()
        {
            self.topics.remove(&topic);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn topic(name: &str) -> TopicName {
        name.parse().unwrap()
    }

    #[test]
    fn the_newest_is_kept_until_its_time() {
        let (mut limit, start) = (Newest::new(SECOND, 10), Instant::now());
        let (door, yard) = (topic("door"), topic("yard"));
        assert_eq!(limit.offer(&door, 1, start), Offer::Run(1));
        assert_eq!(limit.offer(&yard, 2, start), Offer::Run(2));
        assert_eq!(limit.next_due(), None);
        assert_eq!(limit.offer(&door, 3, start), Offer::Kept { replaced: None });
        assert_eq!(limit.offer(&door, 4, start + SECOND / 2), Offer::Kept { replaced: Some(3) });
        assert_eq!(limit.next_due(), Some(start + SECOND));
        assert_eq!(limit.due(start + SECOND / 2), [0; 0]);
        assert_eq!(limit.due(start + SECOND), [4]);
        assert_eq!(limit.offer(&door, 5, start + SECOND), Offer::Kept { replaced: None });
        assert_eq!(limit.due(start + SECOND * 2), [5]);
    }

    #[test]
    fn an_idle_topic_is_forgotten_and_too_many_busy_ones_are_refused() {
        let (mut limit, start) = (Newest::new(SECOND, 2), Instant::now());
        assert_eq!(limit.offer(&topic("a"), 1, start), Offer::Run(1));
        assert_eq!(limit.offer(&topic("b"), 2, start), Offer::Run(2));
        assert_eq!(limit.offer(&topic("c"), 3, start), Offer::Refused(3));
        assert_eq!(limit.offer(&topic("a"), 4, start), Offer::Kept { replaced: None });
        assert_eq!(limit.offer(&topic("c"), 5, start + SECOND), Offer::Run(5));
        assert_eq!(limit.topics.len(), 2);
        assert_eq!(limit.due(start + SECOND * 9), [4]);
        assert_eq!(limit.due(start + SECOND * 10), [0; 0]);
        assert_eq!((limit.topics.len(), limit.idle.len(), limit.kept.len()), (0, 0, 0));
    }

    proptest! {
        #[test]
        fn no_window_has_too_many_nothing_vanishes_and_the_last_one_goes(
            interval in 1_u64..50, max in 1_usize..5, steps in prop::collection::vec((0_u64..20, 0_usize..6), 1..200)
        ) {
            let (mut limit, start) = (Newest::<usize>::new(Duration::from_millis(interval), max), Instant::now());
            let names: Vec<_> = (0..6).map(|number| topic(&number.to_string())).collect();
            let mut now = start;
            let mut went: Vec<(usize, usize, Instant)> = Vec::new();
            let mut dropped = Vec::new();
            let mut last_taken = [None; 6];
            for (item, (pause, of)) in steps.iter().copied().enumerate() {
                now += Duration::from_millis(pause);
                // Now and then nobody looks for what is due.
                if pause % 3 != 0 {
                    went.extend(limit.due(now).into_iter().map(|item| (item, steps[item].1, now)));
                }
                match limit.offer(&names[of], item, now) {
                    Offer::Run(item) => went.push((item, of, now)),
                    Offer::Kept { replaced } => dropped.extend(replaced),
                    Offer::Refused(item) => {
                        dropped.push(item);
                        continue;
                    }
                }
                last_taken[of] = Some(item);
                prop_assert!(limit.topics.len() <= max);
                prop_assert_eq!(limit.topics.len(), limit.kept.len() + limit.idle.len());
            }
            while let Some(due) = limit.next_due() {
                now = due.max(now);
                went.extend(limit.due(now).into_iter().map(|item| (item, steps[item].1, now)));
            }
            let mut all: Vec<usize> = went.iter().map(|(item, ..)| *item).chain(dropped).collect();
            all.sort_unstable();
            prop_assert_eq!(all, (0..steps.len()).collect::<Vec<_>>());
            for (of, last) in last_taken.into_iter().enumerate() {
                let own: Vec<_> = went.iter().filter(|(_, topic, _)| *topic == of).collect();
                prop_assert_eq!(own.last().map(|(item, ..)| *item), last);
                for pair in own.windows(2) {
                    prop_assert!(pair[1].2 - pair[0].2 >= Duration::from_millis(interval));
                    prop_assert!(pair[0].0 < pair[1].0, "in the order they came");
                }
            }
        }
    }
}
