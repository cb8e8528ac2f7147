//! The sections `[serving]`, `[response_cache]` and `[quota]` of the configuration.

use std::time::Duration;

use ledge_base::toml_check::in_range;
use serde::{Deserialize, Serialize};

use super::windows::DailyWindow;
use crate::repository::model_config::{CallLimits, CallRate};

/// Defaults of a model that does not set them in its `model.toml`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ServingConfig {
    /// The most calls of each priority that may wait for one model; the next one is refused.
    #[serde(deserialize_with = "in_range::<1, 1_000_000, _, _>")]
    pub max_queue_size: usize,
    /// The most milliseconds that a call without a timeout may take, waiting included.
    #[serde(deserialize_with = "in_range::<1, 3_600_000, _, _>")]
    pub default_timeout_ms: u64,
    /// The times of day, in local time, at which calls of priority batch are answered; always when it is empty.
    pub batch_windows: Vec<DailyWindow>,
}

impl Default for ServingConfig {
    fn default() -> Self {
        Self { max_queue_size: 1024, default_timeout_ms: 30_000, batch_windows: Vec::new() }
    }
}

/// The response caches of all models together.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ResponseCacheConfig {
    /// The most bytes of cached answers, overheads included; 0 caches none, even for models that ask for it.
    #[serde(deserialize_with = "in_range::<0, 1_099_511_627_776, _, _>")]
    pub max_bytes: u64,
}

impl Default for ResponseCacheConfig {
    fn default() -> Self {
        Self { max_bytes: 64 << 20 }
    }
}

/// Limits of each caller: an address, or a user behind the Unix socket.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct QuotaConfig {
    /// The most calls a second, over time; 0 is no limit.
    pub max_rate_per_principal: CallRate,
    /// The most calls at once after a quiet time; 0 is one second's worth.
    #[serde(deserialize_with = "in_range::<0, 1_000_000, _, _>")]
    pub burst: u32,
    /// The most calls at a time, waiting ones included; 0 is no limit.
    #[serde(deserialize_with = "in_range::<0, 1_000_000, _, _>")]
    pub max_concurrent_per_principal: u32,
}

impl QuotaConfig {
    /// As the limits of one caller.
    pub fn limits(&self) -> CallLimits {
        CallLimits {
            max_concurrent: self.max_concurrent_per_principal,
            max_rate: self.max_rate_per_principal,
            burst: self.burst,
        }
    }
}

impl ServingConfig {
    /// [`Self::default_timeout_ms`].
    pub fn default_timeout(&self) -> Duration {
        Duration::from_millis(self.default_timeout_ms)
    }
}
