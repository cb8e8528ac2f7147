//! Places for loads. Versions that this box has served and new ones have separate places, and a load that takes long
//! leaves its place to the next one.

use std::time::Duration;

use tokio::sync::Semaphore;

/// The time after which a load leaves its place; longer for one that usually takes longer.
const PATIENCE: Duration = Duration::from_secs(10);

/// The most loads of new versions that take long, at a time. Further ones keep their place.
const SLOW_LOADS_MAX: usize = 2;

/// The most versions that are tried again at a time.
const RETRIES_MAX: usize = 2;

/// The class of a load, by the facts known before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LoadHistory {
    /// This box has served it, and its load took this long.
    Served { took: Duration },
    /// It is new here, or somebody requested its load.
    New,
    /// Its last load failed, and it is tried again.
    Again,
}

#[derive(Debug)]
pub(super) struct LoadSemaphores {
    served: Semaphore,
    new: Semaphore,
    slow: Semaphore,
    again: Semaphore,
}

impl LoadSemaphores {
    /// `parallel` loads of served versions at a time, and as many of new ones.
    pub fn new(parallel: usize) -> Self {
        let places = || Semaphore::new(parallel.clamp(1, Semaphore::MAX_PERMITS));
        let (slow, again) = (Semaphore::new(SLOW_LOADS_MAX), Semaphore::new(RETRIES_MAX));
        Self { served: places(), new: places(), slow, again }
    }

    /// Does a load in a place of its class.
    pub async fn run<T>(&self, class: LoadHistory, load: impl Future<Output = T>) -> T {
        self.run_for(class, PATIENCE, load).await
    }

    async fn run_for<T>(&self, class: LoadHistory, patience: Duration, load: impl Future<Output = T>) -> T {
        let (places, patience) = match class {
            LoadHistory::Served { took } => (&self.served, patience.max(took.saturating_mul(3))),
            LoadHistory::New => (&self.new, patience),
            LoadHistory::Again => (&self.again, Duration::MAX),
        };
        // The semaphores are never closed.
        let place = places.acquire().await;
        let mut load = std::pin::pin!(load);
        if let Ok(done) = tokio::time::timeout(patience, &mut load).await {
            return done;
        }
        if class != LoadHistory::New {
            // Served versions may all be loaded in the end, so none waits for another.
            drop(place);
            return load.await;
        }
        let slow = tokio::select! {
            done = &mut load => return done,
            slow = self.slow.acquire() => slow,
        };
        drop(place);
        let done = load.await;
        drop(slow);
        done
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;
    use std::pin::Pin;

    use futures_util::FutureExt;

    use super::*;

    const SERVED: LoadHistory = LoadHistory::Served { took: Duration::ZERO };

    type Load<'p> = Pin<Box<dyn Future<Output = ()> + 'p>>;

    fn endless(places: &LoadSemaphores, class: LoadHistory) -> Load<'_> {
        Box::pin(places.run_for(class, Duration::ZERO, pending()))
    }

    /// Lets loads that never end go on until a state is reached.
    async fn go_on(loads: &mut [Load<'_>], is_reached: impl Fn() -> bool) {
        while !is_reached() {
            assert!(loads.iter_mut().all(|load| load.now_or_never().is_none()));
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    #[tokio::test]
    async fn loads_that_never_end_leave_their_places_to_others() {
        let places = LoadSemaphores::new(1);
        let mut loads = Vec::new();
        for class in [SERVED, SERVED, SERVED, LoadHistory::New, LoadHistory::New] {
            loads.push(endless(&places, class));
        }
        for class in [LoadHistory::Again; 3] {
            loads.push(endless(&places, class));
        }
        let free = || (places.served.available_permits(), places.new.available_permits());
        go_on(&mut loads, || places.slow.available_permits() == 0 && free() == (1, 1)).await;
        assert_eq!(places.again.available_permits(), 0, "one of them waits");
        assert_eq!(places.run(SERVED, async { 1 }).await, 1);
        assert_eq!(places.run(LoadHistory::New, async { 2 }).await, 2);
    }

    #[tokio::test]
    async fn new_versions_that_take_long_are_bounded_and_never_in_the_way_of_served_ones() {
        let places = LoadSemaphores::new(2);
        let mut loads: Vec<_> = (0..6).map(|_| endless(&places, LoadHistory::New)).collect();
        let free = || (places.new.available_permits(), places.slow.available_permits());
        go_on(&mut loads, || free() == (0, 0)).await;
        go_on(&mut loads[..2], || true).await;
        assert_eq!(free(), (0, 0), "two and two, and two wait");
        assert_eq!(places.run(SERVED, async { 1 }).await, 1);
    }
}
