//! The rate limit of each topic of a binding: a number of messages a second, keeping the newest. Pure: the time is
//! passed in.

use std::collections::{BTreeSet, HashMap};
use std::time::{Duration, Instant};

use super::topics::TopicName;

/// Allows one item of each topic per interval, and keeps the newest until the next one is allowed.
///
/// Two items of a topic are at least the interval apart, so that in any time `t` at most `rate * t + 1` are allowed. A
/// topic that was idle for longer is forgotten; there are at most `max_topics` others.
#[derive(Debug)]
pub struct RateLimiter<T> {
    interval: Duration,
    max_topics: usize,
    topics: HashMap<TopicName, TopicState<T>>,
    /// The topics that keep an item, by the time when it is allowed.
    kept: BTreeSet<(Instant, TopicName)>,
    /// The others, by the time when they can be forgotten.
    idle: BTreeSet<(Instant, TopicName)>,
}

#[derive(Debug)]
struct TopicState<T> {
    /// The time when the next item is allowed.
    next: Instant,
    kept: Option<T>,
}

/// The decision about an item.
#[derive(Debug, PartialEq, Eq)]
pub enum RateDecision<T> {
    Run(T),
    /// It is allowed later, unless a newer one comes.
    Kept {
        /// The older item that was kept before: it is dropped.
        replaced: Option<T>,
    },
    /// There are too many topics: the item is dropped.
    Refused(T),
}

impl<T> RateLimiter<T> {
    /// A limit of one item of each topic in every `interval`.
    pub fn new(interval: Duration, max_topics: usize) -> Self {
        Self { interval, max_topics, topics: HashMap::new(), kept: BTreeSet::new(), idle: BTreeSet::new() }
    }

    /// Decides about a new item of `topic`.
    pub fn offer(&mut self, topic: &TopicName, item: T, now: Instant) -> RateDecision<T> {
        self.forget(now);
        if let Some(slot) = self.topics.get_mut(topic) {
            let replaced = slot.kept.replace(item);
            if replaced.is_none() {
                self.idle.remove(&(slot.next, topic.clone()));
                self.kept.insert((slot.next, topic.clone()));
            }
            return RateDecision::Kept { replaced };
        }
        if self.topics.len() >= self.max_topics {
            return RateDecision::Refused(item);
        }
        let next = now + self.interval;
        self.topics.insert(topic.clone(), TopicState { next, kept: None });
        self.idle.insert((next, topic.clone()));
        RateDecision::Run(item)
    }

    /// The kept items that are allowed now.
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

    /// The next time that [`Self::due`] returns an item.
    pub fn next_due(&self) -> Option<Instant> {
        self.kept.first().map(|(next, _)| *next)
    }

    /// Forgets the topics after the end of their interval.
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
        let (mut limit, start) = (RateLimiter::new(SECOND, 10), Instant::now());
        let (door, yard) = (topic("door"), topic("yard"));
        assert_eq!(limit.offer(&door, 1, start), RateDecision::Run(1));
        assert_eq!(limit.offer(&yard, 2, start), RateDecision::Run(2));
        assert_eq!(limit.next_due(), None);
        assert_eq!(limit.offer(&door, 3, start), RateDecision::Kept { replaced: None });
        assert_eq!(limit.offer(&door, 4, start + SECOND / 2), RateDecision::Kept { replaced: Some(3) });
        assert_eq!(limit.next_due(), Some(start + SECOND));
        assert_eq!(limit.due(start + SECOND / 2), [0; 0]);
        assert_eq!(limit.due(start + SECOND), [4]);
        assert_eq!(limit.offer(&door, 5, start + SECOND), RateDecision::Kept { replaced: None });
        assert_eq!(limit.due(start + SECOND * 2), [5]);
    }

    #[test]
    fn an_idle_topic_is_forgotten_and_too_many_busy_ones_are_refused() {
        let (mut limit, start) = (RateLimiter::new(SECOND, 2), Instant::now());
        assert_eq!(limit.offer(&topic("a"), 1, start), RateDecision::Run(1));
        assert_eq!(limit.offer(&topic("b"), 2, start), RateDecision::Run(2));
        assert_eq!(limit.offer(&topic("c"), 3, start), RateDecision::Refused(3));
        assert_eq!(limit.offer(&topic("a"), 4, start), RateDecision::Kept { replaced: None });
        assert_eq!(limit.offer(&topic("c"), 5, start + SECOND), RateDecision::Run(5));
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
            let (mut limit, start) = (RateLimiter::<usize>::new(Duration::from_millis(interval), max), Instant::now());
            let names: Vec<_> = (0..6).map(|number| topic(&number.to_string())).collect();
            let mut now = start;
            let mut went: Vec<(usize, usize, Instant)> = Vec::new();
            let mut dropped = Vec::new();
            let mut last_taken = [None; 6];
            for (item, (pause, of)) in steps.iter().copied().enumerate() {
                now += Duration::from_millis(pause);
                // Now and then the due items are not fetched.
                if pause % 3 != 0 {
                    went.extend(limit.due(now).into_iter().map(|item| (item, steps[item].1, now)));
                }
                match limit.offer(&names[of], item, now) {
                    RateDecision::Run(item) => went.push((item, of, now)),
                    RateDecision::Kept { replaced } => dropped.extend(replaced),
                    RateDecision::Refused(item) => {
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
