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
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::time::Instant;

use super::answer::Failure;
use crate::features::FeatureStore;
use crate::features::online::{FeatureError, Push, Pushed};
use crate::protocol::status;
use crate::shutdown::Shutdown;

/// How long a push is tried again.
const PATIENCE: Duration = Duration::from_mins(1);

/// The first pause before the next trial; each is twice the one before it.
const FIRST_PAUSE: Duration = Duration::from_millis(100);

/// The longest pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// How many pushes wait for their next trial at a time.
const MOST_WAITING: usize = 1024;

/// Pushes, and tries again. Clones share the limit of those that wait.
#[derive(Debug, Clone)]
pub struct Pusher {
    places: Arc<Semaphore>,
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
        Self { places: Arc::new(Semaphore::new(MOST_WAITING)), shutdown }
    }

    /// Pushes; `Ok` says that it is durable.
    pub async fn push(&self, store: &FeatureStore, push: Push) -> Result<Pushed, Unpushed> {
        let give_up = Instant::now() + PATIENCE;
        let (mut pause, mut place) = (FIRST_PAUSE, None);
        loop {
            let error = match store.push(push.clone()).await {
                Ok(pushed) => return Ok(pushed),
                Err(error) => error,
            };
            if place.is_none() {
                place = self.places.try_acquire().ok();
            }
            if !passes(&error) || place.is_none() || Instant::now() + pause > give_up {
                return Err(Unpushed::Failed(failure(&error)));
            }
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = self.shutdown.requested() => return Err(Unpushed::Stopped),
            }
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }
}

/// Whether the same push may succeed later.
fn passes(error: &FeatureError) -> bool {
    match error {
        FeatureError::Unavailable { .. }
        | FeatureError::Overloaded { .. }
        | FeatureError::DiskFull { .. }
        | FeatureError::NotWritten { .. } => true,
        FeatureError::Disabled { .. }
        | FeatureError::UnknownView { .. }
        | FeatureError::UnknownFeature { .. }
        | FeatureError::UnknownService { .. }
        | FeatureError::UnknownSource { .. }
        | FeatureError::Reference { .. }
        | FeatureError::MissingColumn { .. }
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
