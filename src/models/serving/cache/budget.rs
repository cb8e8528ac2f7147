//! The bytes that all response caches share.
//!
//! A cache gets the bytes it asked for while they fit. When all together ask for more than there is, each gets its part
//! in proportion. No model starves another, and during a reload the old and the new cache share until the old one is
//! dropped.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::serving::cache::answers::AnswerCache;

/// The bytes for all caches, and the request of each.
#[derive(Debug)]
pub struct CacheBudget {
    total: u64,
    members: Mutex<Vec<CacheBudgetMember>>,
}

#[derive(Debug)]
struct CacheBudgetMember {
    store: Arc<AnswerCache>,
    wanted: u64,
}

impl CacheBudget {
    /// A budget of `total` bytes; 0 caches nothing.
    pub fn new(total: u64) -> Self {
        Self { total, members: Mutex::default() }
    }

    /// All bytes.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// Gives a cache its part of the bytes. `false` when its part is 0.
    pub(super) fn join(&self, store: &Arc<AnswerCache>, wanted: u64) -> bool {
        let wanted = wanted.min(self.total);
        if wanted > 0 {
            let mut members = self.lock();
            members.push(CacheBudgetMember { store: store.clone(), wanted });
            self.share_out(&members);
        }
        wanted > 0
    }

    /// Takes back the bytes of a cache.
    pub(super) fn leave(&self, store: &Arc<AnswerCache>) {
        let mut members = self.lock();
        members.retain(|member| !Arc::ptr_eq(&member.store, store));
        self.share_out(&members);
    }

    fn share_out(&self, members: &[CacheBudgetMember]) {
        let asked: u128 = members.iter().map(|member| u128::from(member.wanted)).sum();
        let share = |member: &CacheBudgetMember| {
            let part = u128::from(member.wanted) * u128::from(self.total) / asked.max(u128::from(self.total));
            u64::try_from(part).unwrap_or(self.total)
        };
        // Caches that shrink come first: at no time is more assigned than there is.
        let (shrink, grow): (Vec<_>, Vec<_>) =
            members.iter().map(|m| (m, share(m))).partition(|(member, share)| *share < member.store.capacity());
        for (member, share) in shrink.into_iter().chain(grow) {
            if member.store.capacity() != share {
                member.store.set_capacity(share);
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<CacheBudgetMember>> {
        // Nothing panics under this lock.
        self.members.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
