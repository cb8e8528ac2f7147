//! The section `[features]` of the configuration.

use std::path::PathBuf;

use ledge_base::clock;
use ledge_base::toml_check::in_range;
use serde::{Deserialize, Serialize};

/// The folders of the declarations and of the store, and the limits of the store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct FeaturesConfig {
    /// The folder with the `*.toml` files that declare entities, feature views and feature services.
    pub views: PathBuf,
    /// The folder of the store.
    pub path: PathBuf,
    /// The memory that sled may use as a cache for the changes since a snapshot, in MiB.
    #[serde(deserialize_with = "in_range::<16, 1024, _, _>")]
    pub cache_mb: u64,
    /// Pushes are refused when less than this is free on the disk of the store, in MiB: the index needs space to work
    /// in.
    #[serde(deserialize_with = "in_range::<16, 1_048_576, _, _>")]
    pub min_free_mb: u64,
    /// The growth of the journal since the last snapshot that triggers the next one in any case, in MiB.
    #[serde(deserialize_with = "in_range::<1, 1_048_576, _, _>")]
    pub snapshot_mb: u64,
    /// The time for which a row is kept after its ttl, so that reads report `OUTSIDE_MAX_AGE` and not `NOT_FOUND`, in
    /// hours.
    #[serde(deserialize_with = "in_range::<0, 87_600, _, _>")]
    pub keep_expired_h: u64,
    /// The most by which an event time may be ahead of this box's clock, in seconds. One from the far future would stay
    /// the newest.
    #[serde(deserialize_with = "in_range::<1, 31_536_000, _, _>")]
    pub max_ahead_s: u64,
}

impl FeaturesConfig {
    /// The latest event time that is accepted when the box's clock says `now_us`. A clock that was never set disables
    /// the check.
    pub fn accepted_until(&self, now_us: i64) -> i64 {
        let ahead_us = i64::try_from(self.max_ahead_s).unwrap_or(i64::MAX).saturating_mul(1_000_000);
        let is_set = clock::FLOOR.is_plausible(u64::try_from(now_us / 1000).unwrap_or(0));
        if is_set { now_us.saturating_add(ahead_us) } else { i64::MAX }
    }
}

impl Default for FeaturesConfig {
    fn default() -> Self {
        Self {
            views: "feature_views.d".into(),
            path: "features".into(),
            cache_mb: 32,
            min_free_mb: 64,
            snapshot_mb: 256,
            keep_expired_h: 24,
            max_ahead_s: 600,
        }
    }
}
