//! Pushes of bindings into the feature store, with retries while the store cannot take them.
//!
//! A push that fails because of its content is not retried: it would fail again. One that fails because of the box (its
//! store is being opened or rebuilt, its disk is full, too many pushes wait) is retried for a minute, and its delivery
//! is not settled before: an acknowledgement promises the device that its rows are durable. Meanwhile other messages
//! are handled, but acknowledged in the order they came (MQTT 5, section 4.6), so a broker that sends with QoS 1 stops
//! after `max_in_flight` of them. The retries must end, or a box with a full disk would never again receive anything
//! over QoS 1. A push that is given up is settled, counted and logged as an error. When the daemon stops, a push that
//! is being retried stays unsettled, and the broker delivers it to the next daemon.
//!
//! Messages of QoS 0 and those of a rate limit are retried too, although they need no acknowledgement. The broker does
//! not limit them, so the number of waiting retries is bounded.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ledge_base::memory_budget::MemoryBudgetExhausted;
use ledge_base::principal::Principal;
use ledge_features::online::{FeatureError, FeaturePush, PushOutcome};
use ledge_features::{FeatureCaller, FeatureStore};
use ledge_models::status;
use ledge_service::shutdown::Shutdown;
use tokio::sync::Semaphore;

use ledge_part::api_error::ApiError;

/// The time and the pauses of retries.
#[derive(Debug, Clone, Copy)]
struct RetryPolicy {
    total: Duration,
    /// The first pause; each further one is twice as long.
    first: Duration,
    longest: Duration,
}

const RETRY_POLICY: RetryPolicy =
    RetryPolicy { total: Duration::from_mins(1), first: Duration::from_millis(100), longest: Duration::from_secs(5) };

/// The most pushes that wait for their next attempt at a time.
const RETRIES_WAITING_MAX: usize = 1024;

/// Pushes with retries. Clones share the limit of waiting retries.
#[derive(Debug, Clone)]
pub struct FeaturePusher {
    retry_slots: Arc<Semaphore>,
    retry_policy: RetryPolicy,
    shutdown: Shutdown,
}

/// The reason why a push is not durable.
#[derive(Debug)]
pub enum FeaturePushError {
    /// It failed, and is not retried.
    Failed(ApiError),
    /// The daemon stops: the next one retries it.
    Stopped,
}

impl FeaturePusher {
    /// A pusher that stops its retries at `shutdown`.
    pub fn new(shutdown: Shutdown) -> Self {
        Self { retry_slots: Arc::new(Semaphore::new(RETRIES_WAITING_MAX)), retry_policy: RETRY_POLICY, shutdown }
    }

    /// Pushes; with `Ok` the rows are durable.
    pub async fn push(
        &self,
        store: &FeatureStore,
        push: FeaturePush,
        principal: Principal,
    ) -> Result<PushOutcome, FeaturePushError> {
        let caller = FeatureCaller::unlimited(principal);
        self.push_with_retries(|| store.push(push.clone(), caller.clone())).await
    }

    /// Tries to find memory until there is some, for a minute at most, while the delivery of a message is not settled.
    pub async fn with_memory<T, F: Future<Output = Result<T, ApiError>>>(
        &self,
        mut attempt: impl FnMut() -> F,
    ) -> Result<T, FeaturePushError> {
        let RetryPolicy { total, first, longest } = self.retry_policy;
        let (give_up, mut pause) = (Instant::now() + total, first);
        loop {
            let failure = match attempt().await {
                Ok(done) => return Ok(done),
                Err(failure) => failure,
            };
            if failure != ApiError::from(MemoryBudgetExhausted) || Instant::now() + pause > give_up {
                return Err(FeaturePushError::Failed(failure));
            }
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = self.shutdown.requested() => return Err(FeaturePushError::Stopped),
            }
            pause = (pause * 2).min(longest);
        }
    }

    async fn push_with_retries<F: Future<Output = Result<PushOutcome, FeatureError>>>(
        &self,
        mut attempt: impl FnMut() -> F,
    ) -> Result<PushOutcome, FeaturePushError> {
        let RetryPolicy { total, first, longest } = self.retry_policy;
        let give_up = Instant::now() + total;
        let (mut pause, mut slot) = (first, None);

        loop {
            let error = match attempt().await {
                Ok(pushed) => return Ok(pushed),
                Err(error) => error,
            };
            let failed = Err(FeaturePushError::Failed(failure(&error)));
            if !is_retryable(&error) || Instant::now() + pause > give_up {
                return failed;
            }
            slot = slot.or_else(|| self.retry_slots.try_acquire().ok());
            if slot.is_none() {
                return failed;
            }

            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = self.shutdown.requested() => return Err(FeaturePushError::Stopped),
            }
            pause = (pause * 2).min(longest);
        }
    }
}

/// Returns `true` if the same push may succeed later.
fn is_retryable(error: &FeatureError) -> bool {
    match error {
        FeatureError::Unavailable { .. }
        | FeatureError::Overloaded { .. }
        | FeatureError::DiskFull { .. }
        | FeatureError::NotWritten { .. }
        | FeatureError::NoRoom(_)
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

/// An error of the store, for the caller and for the log.
pub fn failure(error: &FeatureError) -> ApiError {
    ApiError::with_code(status::of_features(error), error.to_string())
}

#[cfg(test)]
mod tests {
    use ledge_part::api_error::StatusCode;

    use super::*;

    fn rebuilding() -> FeatureError {
        FeatureError::Unavailable { reason: "it is being rebuilt".into() }
    }

    /// A pusher with times that are short enough for a test.
    fn pusher() -> FeaturePusher {
        let [total, first, longest] = [40, 1, 4].map(Duration::from_millis);
        FeaturePusher { retry_policy: RetryPolicy { total, first, longest }, ..FeaturePusher::new(Shutdown::default()) }
    }

    #[tokio::test]
    async fn a_push_that_the_box_cannot_take_now_is_tried_until_it_can() {
        let mut attempts = 0;
        let pusher = FeaturePusher {
            retry_policy: RetryPolicy { total: Duration::from_mins(1), ..pusher().retry_policy },
            ..pusher()
        };
        let written = pusher.push_with_retries(|| {
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
            .push_with_retries(|| {
                attempts += 1;
                async { Err(rebuilding()) }
            })
            .await;
        assert!(
            matches!(end, Err(FeaturePushError::Failed(ApiError { status: StatusCode::SERVICE_UNAVAILABLE, .. }))),
            "{end:?}"
        );
        // The last pause would have ended after the time is up.
        assert!(attempts > 1 && begun.elapsed() >= Duration::from_millis(40 - 4), "{:?}", begun.elapsed());
        attempts = 0;
        let end = pusher()
            .push_with_retries(|| {
                attempts += 1;
                async { Err(FeatureError::Value { column: "temp".into(), row: 0, reason: "no number".into() }) }
            })
            .await;
        assert!(
            matches!(end, Err(FeaturePushError::Failed(ApiError { status: StatusCode::BAD_REQUEST, .. }))),
            "{end:?}"
        );
        assert_eq!(attempts, 1);
    }

    #[tokio::test]
    async fn only_so_many_wait_and_none_once_the_daemon_stops() {
        let pusher = FeaturePusher { retry_policy: RETRY_POLICY, ..pusher() };
        let all = pusher.retry_slots.try_acquire_many(u32::try_from(RETRIES_WAITING_MAX).unwrap()).unwrap();
        let end = pusher.push_with_retries(|| async { Err(rebuilding()) }).await;
        assert!(matches!(end, Err(FeaturePushError::Failed(_))), "{end:?}");
        drop(all);
        pusher.shutdown.request();
        let end = pusher.push_with_retries(|| async { Err(rebuilding()) }).await;
        assert!(matches!(end, Err(FeaturePushError::Stopped)), "{end:?}");
    }
}
