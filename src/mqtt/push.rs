//! Pushes of bindings into the feature store, and what becomes of those that the store cannot take now.
//!
//! A message whose push fails because of what it says is dealt with: another try would fail as well. One that fails because
//! of the box (its store is being opened or rebuilt, its disk is full, too many pushes wait) is tried again for a minute, and
//! its delivery is not settled before: the device learns of an acknowledgement only what is durable. Meanwhile other messages
//! are dealt with, but acknowledged in the order they came (MQTT 5, section 4.6), so that a broker that sends with QoS 1
//! stops after `max_in_flight` of them. That is why the trials end: a box with a full disk would else never again
//! be asked anything over QoS 1. What is given up is settled, counted and logged as an error. When the daemon stops, what is
//! being tried stays unsettled, and the broker delivers it to the next one.
//!
//! Messages of QoS 0 and those that a rate limit let go are tried again too, though nothing is owed for them. They
//! are not held back by the broker, so only so many may wait at a time.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ledge_base::principal::Principal;
use ledge_features::online::{FeatureError, Push, PushOutcome};
use ledge_features::{FeatureCaller, FeatureStore};
use ledge_models::status;
use ledge_service::shutdown::Shutdown;
use tokio::sync::Semaphore;

use super::answer::Failure;

/// How long pushes are tried again.
#[derive(Debug, Clone, Copy)]
struct Patience {
    total: Duration,
    /// The first pause before the next trial; each is twice the one before it.
    first: Duration,
    longest: Duration,
}

const PATIENCE: Patience =
    Patience { total: Duration::from_mins(1), first: Duration::from_millis(100), longest: Duration::from_secs(5) };

/// How many pushes wait for their next trial at a time.
const MOST_WAITING: usize = 1024;

/// Pushes, and tries again. Clones share the limit of those that wait.
#[derive(Debug, Clone)]
pub struct Pusher {
    places: Arc<Semaphore>,
    patience: Patience,
    shutdown: Shutdown,
}

/// Why a push is not durable.
#[derive(Debug)]
pub enum Unpushed {
    /// It failed, for good.
    Failed(Failure),
    /// The daemon stops: the next one will do it.
    Stopped,
}

impl Pusher {
    /// Of a daemon, until it stops.
    pub fn new(shutdown: Shutdown) -> Self {
        Self { places: Arc::new(Semaphore::new(MOST_WAITING)), patience: PATIENCE, shutdown }
    }

    /// Pushes; `Ok` says that it is durable.
    pub async fn push(&self, store: &FeatureStore, push: Push, principal: Principal) -> Result<PushOutcome, Unpushed> {
        let caller = FeatureCaller::unlimited(principal);
        self.persist(|| store.push(push.clone(), caller.clone())).await
    }

    async fn persist<F: Future<Output = Result<PushOutcome, FeatureError>>>(
        &self,
        mut attempt: impl FnMut() -> F,
    ) -> Result<PushOutcome, Unpushed> {
        let Patience { total, first, longest } = self.patience;
        let give_up = Instant::now() + total;
        let (mut pause, mut place) = (first, None);
        loop {
            let error = match attempt().await {
                Ok(pushed) => return Ok(pushed),
                Err(error) => error,
            };
            let failed = Err(Unpushed::Failed(failure(&error)));
            if !passes(&error) || Instant::now() + pause > give_up {
                return failed;
            }
            place = place.or_else(|| self.places.try_acquire().ok());
            if place.is_none() {
                return failed;
            }
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = self.shutdown.requested() => return Err(Unpushed::Stopped),
            }
            pause = (pause * 2).min(longest);
        }
    }
}

/// Whether the same push may succeed later.
fn passes(error: &FeatureError) -> bool {
    match error {
        FeatureError::Unavailable { .. }
        | FeatureError::Overloaded { .. }
        | FeatureError::DiskFull { .. }
        | FeatureError::NotWritten { .. }
        | FeatureError::NotErased { .. } => true,
        FeatureError::Disabled { .. }
        | FeatureError::OutOfScope { .. }
        | FeatureError::UnknownView { .. }
        | FeatureError::UnknownFeature { .. }
        | FeatureError::UnknownService { .. }
        | FeatureError::UnknownSource { .. }
        | FeatureError::Reference { .. }
        | FeatureError::MissingColumn { .. }
        | FeatureError::NoFeature { .. }
        | FeatureError::Columns { .. }
        | FeatureError::Value { .. }
        | FeatureError::Backup { .. }
        | FeatureError::TooLarge { .. } => false,
    }
}

/// A failure of the store, for the one who asked and for the log.
pub fn failure(error: &FeatureError) -> Failure {
    Failure::new(status::of_features(error), error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rebuilding() -> FeatureError {
        FeatureError::Unavailable { reason: "it is being rebuilt".into() }
    }

    /// One with as little patience as a test has.
    fn pusher() -> Pusher {
        let [total, first, longest] = [40, 1, 4].map(Duration::from_millis);
        Pusher { patience: Patience { total, first, longest }, ..Pusher::new(Shutdown::default()) }
    }

    #[tokio::test]
    async fn a_push_that_the_box_cannot_take_now_is_tried_until_it_can() {
        let mut attempts = 0;
        let pusher = Pusher { patience: Patience { total: Duration::from_mins(1), ..pusher().patience }, ..pusher() };
        let written = pusher.persist(|| {
            attempts += 1;
            let result = if attempts < 5 { Err(rebuilding()) } else { Ok(PushOutcome::default()) };
            async { result }
        });
        assert!(written.await.is_ok());
        assert_eq!(attempts, 5);
    }

    #[tokio::test]
    async fn it_is_given_up_in_the_end_and_at_once_when_the_message_is_to_blame() {
        let (begun, mut attempts) = (Instant::now(), 0);
        let end = pusher()
            .persist(|| {
                attempts += 1;
                async { Err(rebuilding()) }
            })
            .await;
        assert!(matches!(end, Err(Unpushed::Failed(Failure { status: 503, .. }))), "{end:?}");
        // The last pause would have ended after the time is up.
        assert!(attempts > 1 && begun.elapsed() >= Duration::from_millis(40 - 4), "{:?}", begun.elapsed());
        attempts = 0;
        let end = pusher()
            .persist(|| {
                attempts += 1;
                async { Err(FeatureError::Value { column: "temp".into(), row: 0, reason: "no number".into() }) }
            })
            .await;
        assert!(matches!(end, Err(Unpushed::Failed(Failure { status: 400, .. }))), "{end:?}");
        assert_eq!(attempts, 1);
    }

    #[tokio::test]
    async fn only_so_many_wait_and_none_once_the_daemon_stops() {
        let pusher = Pusher { patience: PATIENCE, ..pusher() };
        let all = pusher.places.try_acquire_many(u32::try_from(MOST_WAITING).unwrap()).unwrap();
        let end = pusher.persist(|| async { Err(rebuilding()) }).await;
        assert!(matches!(end, Err(Unpushed::Failed(_))), "{end:?}");
        drop(all);
        pusher.shutdown.request();
        let end = pusher.persist(|| async { Err(rebuilding()) }).await;
        assert!(matches!(end, Err(Unpushed::Stopped)), "{end:?}");
    }
}
