//! Messages that wait until their model is loaded.
//!
//! Over MQTT a call that comes during the start of the box was meant for it long before, so it waits instead of
//! failing. It is acknowledged after its answer, so the broker keeps it if the box stops meanwhile.

use std::time::Duration;

use ledge_base::names::{ModelName, ModelVersion};
use ledge_models::repository::Repository;
use ledge_service::shutdown::Shutdown;

use super::held_bytes::HeldBytes;

/// The longest time that a message waits for a version that this box has not served: it may never load, and
/// acknowledgements keep their order.
const NEW_MODEL_PATIENCE: Duration = Duration::from_mins(1);

/// The messages of one session that wait for models. Clones count together.
#[derive(Debug, Clone)]
pub struct ModelWait {
    repository: Repository,
    shutdown: Shutdown,
    waiting: HeldBytes,
}

impl ModelWait {
    pub fn new(repository: Repository, shutdown: Shutdown) -> Self {
        Self { repository, shutdown, waiting: HeldBytes::default() }
    }

    /// The bytes of the messages that wait.
    pub fn bytes(&self) -> usize {
        self.waiting.get()
    }

    /// Returns `true` if a message for this model would wait.
    pub fn is_needed(&self, model: &ModelName, version: Option<ModelVersion>) -> bool {
        self.repository.is_loading(model, version)
    }

    /// Waits until the model serves or says why not. `bytes` are those of the message. Returns `false` if the daemon
    /// stops before.
    pub async fn wait(&self, model: &ModelName, version: Option<ModelVersion>, bytes: usize) -> bool {
        if !self.is_needed(model, version) {
            return true;
        }
        let _waiting = self.waiting.hold(bytes, None);
        tokio::select! {
            () = self.repository.wait_while_loading(model, version, NEW_MODEL_PATIENCE) => true,
            () = self.shutdown.requested() => false,
        }
    }
}
