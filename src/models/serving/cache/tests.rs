use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use futures_util::FutureExt;
use proptest::prelude::*;

use bytes::Bytes;
use ledge_engine::pipeline::content::CallContent;

use super::*;

fn keys() -> CacheKeyBuilder {
    CacheKeyBuilder::new(&["m"], &[])
}

fn key(number: u64) -> CacheKey {
    Arc::new(keys())
        .of_content(&CallContent::Photograph(Bytes::copy_from_slice(&number.to_le_bytes())))
        .now_or_never()
        .unwrap()
}

fn answer(bytes: usize) -> Vec<Tensor> {
    vec![Tensor::from_vec(vec![bytes], vec![7_u8; bytes]).unwrap()]
}

fn cache(max_bytes: u64, ttl: Option<Duration>) -> ResponseCache {
    ResponseCache::new(keys(), &Arc::new(CacheBudget::new(1 << 20)), max_bytes, ttl).unwrap()
}

fn lead(cache: &ResponseCache, key: CacheKey, priority: Priority) -> AnswerComputationLead<'_> {
    match cache.join(key, priority, Instant::now()).now_or_never() {
        Some(JoinOutcome::Lead(lead)) => lead,
        other => panic!("expected to lead, got {other:?}"),
    }
}

fn keep(cache: &ResponseCache, key: CacheKey, outputs: &[Tensor], now: Instant) {
    lead(cache, key, Priority::Interactive).keep(outputs, now);
}

/// Polls once.
fn poll<F: Future>(future: std::pin::Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

#[test]
fn what_is_kept_is_found_until_its_time_is_over() {
    let (start, ttl) = (Instant::now(), Duration::from_mins(1));
    let cache = cache(1 << 16, Some(ttl));
    assert!(cache.get(key(1), start).is_none());
    keep(&cache, key(1), &answer(3), start);
    assert_eq!(cache.get(key(1), start).unwrap()[..], answer(3)[..]);
    assert!(cache.get(key(1), start + ttl.saturating_sub(Duration::from_nanos(1))).is_some());
    assert!(cache.get(key(2), start).is_none());
    assert!(cache.get(key(1), start + ttl).is_none());
    assert_eq!(cache.bytes(), 0, "what is too old leaves");
    keep(&cache, key(1), &answer(4), start + ttl);
    assert_eq!(cache.get(key(1), start + ttl).unwrap()[..], answer(4)[..]);
}

#[test]
fn without_a_ttl_an_answer_stays() {
    let cache = cache(1 << 16, None);
    let start = Instant::now();
    keep(&cache, key(1), &answer(3), start);
    assert!(cache.get(key(1), start + Duration::from_secs(1_000_000_000)).is_some());
}

#[test]
fn those_who_ask_meanwhile_get_the_answer_of_the_first_at_each_priority() {
    for priority in Priority::ALL {
        let cache = cache(1 << 16, None);
        let now = Instant::now();
        let first = lead(&cache, key(1), priority);
        let (mut second, mut third) =
            (pin!(cache.join(key(1), priority, now)), pin!(cache.join(key(1), priority, now)));
        assert!(poll(second.as_mut()).is_pending() && poll(third.as_mut()).is_pending());
        first.keep(&answer(5), now);
        for joined in [poll(second), poll(third)] {
            let Poll::Ready(JoinOutcome::Joined(outputs)) = joined else { panic!("{joined:?}") };
            assert_eq!(outputs[..], answer(5)[..]);
        }
        assert_eq!(cache.bytes(), stored_bytes(&answer(5)), "kept once");
        assert!(cache.get(key(1), now).is_some());
    }
}

#[test]
fn an_urgent_caller_never_waits_for_background_work() {
    let cache = cache(1 << 16, None);
    let now = Instant::now();
    let background = lead(&cache, key(1), Priority::Batch);
    let urgent = lead(&cache, key(1), Priority::Interactive);
    background.keep(&answer(5), now);
    assert!(cache.get(key(1), now).is_some());
    urgent.keep(&answer(5), now);
    assert_eq!(cache.bytes(), stored_bytes(&answer(5)), "kept once");
}

#[test]
fn background_work_finds_what_an_urgent_caller_computed_before_its_turn() {
    let cache = cache(1 << 16, None);
    let now = Instant::now();
    let first = lead(&cache, key(1), Priority::Batch);
    let mut second = pin!(cache.join(key(1), Priority::Batch, now));
    assert!(poll(second.as_mut()).is_pending());
    keep(&cache, key(1), &answer(5), now);
    drop(first);
    assert!(matches!(poll(second), Poll::Ready(JoinOutcome::Joined(_))));
}

#[test]
fn a_leader_that_leaves_hands_over_to_one_who_waits_and_keeps_nothing() {
    for priority in Priority::ALL {
        let cache = cache(1 << 16, None);
        let now = Instant::now();
        let first = lead(&cache, key(1), priority);
        let (mut second, mut third) =
            (Box::pin(cache.join(key(1), priority, now)), Box::pin(cache.join(key(1), priority, now)));
        assert!(poll(second.as_mut()).is_pending() && poll(third.as_mut()).is_pending());
        drop(first);
        assert!(cache.get(key(1), now).is_none(), "a failure is not kept");
        let (heir, mut other) = match (poll(second.as_mut()), poll(third.as_mut())) {
            (Poll::Ready(JoinOutcome::Lead(heir)), Poll::Pending) => (heir, third),
            (Poll::Pending, Poll::Ready(JoinOutcome::Lead(heir))) => (heir, second),
            other => panic!("exactly one leads: {other:?}"),
        };
        heir.keep(&answer(5), now);
        assert!(matches!(poll(other.as_mut()), Poll::Ready(JoinOutcome::Joined(_))));
    }
}

#[test]
fn one_who_stops_waiting_holds_up_nobody() {
    let cache = cache(1 << 16, None);
    let now = Instant::now();
    let first = lead(&cache, key(1), Priority::Interactive);
    let mut gone = Box::pin(cache.join(key(1), Priority::Interactive, now));
    let mut waits = Box::pin(cache.join(key(1), Priority::Interactive, now));
    assert!(poll(gone.as_mut()).is_pending() && poll(waits.as_mut()).is_pending());
    drop(first);
    // Whichever of the two was woken, the duty reaches the one that still waits.
    drop(gone);
    assert!(matches!(poll(waits.as_mut()), Poll::Ready(JoinOutcome::Lead(_))));
}

#[test]
fn an_answer_too_large_to_keep_still_reaches_those_who_wait() {
    for priority in Priority::ALL {
        let cache = cache(1000, None);
        let now = Instant::now();
        let first = lead(&cache, key(1), priority);
        let mut second = pin!(cache.join(key(1), priority, now));
        assert!(poll(second.as_mut()).is_pending());
        first.keep(&answer(5000), now);
        assert!(matches!(poll(second), Poll::Ready(JoinOutcome::Joined(outputs)) if outputs[..] == answer(5000)[..]));
        assert_eq!(cache.bytes(), 0);
    }
}

#[test]
fn kept_bytes_are_not_part_of_a_larger_allocation() {
    let cache = cache(1 << 16, None);
    let large = Bytes::from(vec![1_u8; 1 << 20]);
    let part = Tensor::new(ledge_base::tensor::DataType::Uint8, vec![4], large.slice(8..12)).unwrap();
    let now = Instant::now();
    keep(&cache, key(1), &[part], now);
    let kept = cache.get(key(1), now).unwrap();
    assert!(!large.as_ptr_range().contains(&kept[0].data().as_ptr()));
}

#[test]
fn without_bytes_there_is_no_cache() {
    assert!(ResponseCache::new(keys(), &Arc::new(CacheBudget::new(0)), 1000, None).is_none());
    assert!(ResponseCache::new(keys(), &Arc::new(CacheBudget::new(1000)), 0, None).is_none());
}

#[test]
fn caches_that_ask_for_more_than_there_is_share_and_get_it_back() {
    let budget = Arc::new(CacheBudget::new(3000));
    let cache = |wanted| ResponseCache::new(keys(), &budget, wanted, None).unwrap();
    let first = cache(2000);
    let second = cache(1000);
    assert_eq!((first.store.capacity(), second.store.capacity()), (2000, 1000));
    let third = cache(1_000_000);
    assert_eq!([&first, &second, &third].map(|cache| cache.store.capacity()), [1000, 500, 1500]);
    drop(third);
    drop(first);
    assert_eq!(second.store.capacity(), 1000);
    assert_eq!(budget.total(), 3000);
}

proptest! {
    #[test]
    fn the_bytes_stay_within_each_limit_and_the_whole(
        limits in prop::collection::vec(1_u64..20_000, 1..4),
        total in 1_u64..30_000,
        steps in prop::collection::vec((0_usize..4, 0_u64..40, 0_usize..6000, any::<bool>()), 0..200),
    ) {
        let budget = Arc::new(CacheBudget::new(total));
        let now = Instant::now();
        let mut caches: Vec<ResponseCache> = Vec::new();
        for (which, number, size, reload) in steps {
            let which = which % limits.len();
            if which >= caches.len() {
                caches.push(ResponseCache::new(keys(), &budget, limits[caches.len()], None).unwrap());
                continue;
            }
            if reload && number == 0 {
                // The new one is there before the old one is dropped.
                caches[which] = ResponseCache::new(keys(), &budget, limits[which], None).unwrap();
            } else if caches[which].get(key(number), now).is_none() {
                keep(&caches[which], key(number), &answer(size), now);
            }
            let all: u64 = caches.iter().map(ResponseCache::bytes).sum();
            prop_assert!(all <= total, "{all} of {total}");
            for (cache, limit) in caches.iter().zip(&limits) {
                prop_assert!(cache.bytes() <= *limit);
            }
        }
    }
}
