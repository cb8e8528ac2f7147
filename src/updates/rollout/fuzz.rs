//! Properties that hold for any bytes in place of a rollout manifest, or of the file that stores it. The folder `fuzz/`
//! and `tests/it/fuzz.rs` feed it.

use std::collections::BTreeSet;

use super::manifest::{MANIFEST_MAX_BYTES, MAX_ROLLOUTS, MAX_WAVES, MISTAKES_MAX, ManifestError, RolloutManifest};
use super::manifest_file;
use super::waves::SEED_COUNT;

/// Reads a manifest; true when it is one. It is within its bounds, and has each rollout once.
///
/// # Panics
/// When an invariant does not hold.
pub fn fuzz_manifest(data: &[u8]) -> bool {
    let manifest = match RolloutManifest::parse(data) {
        Ok(manifest) => manifest,
        Err(ManifestError::Wrong { mistakes }) => {
            assert!((1..=MISTAKES_MAX + 1).contains(&mistakes.len()), "{mistakes:?}");
            return false;
        }
        Err(ManifestError::Form { .. } | ManifestError::TooLarge { .. }) => return false,
    };
    assert!(data.len() as u64 <= MANIFEST_MAX_BYTES && manifest.rollouts.len() <= MAX_ROLLOUTS);

    let ids: BTreeSet<_> = manifest.rollouts.iter().map(|rollout| &rollout.plan.rollout).collect();
    assert_eq!(ids.len(), manifest.rollouts.len(), "a rollout is listed twice");
    for rollout in &manifest.rollouts {
        assert!(manifest.subjects().contains(&rollout.plan.target.subject));
        assert!(rollout.waves.len() <= MAX_WAVES);
        assert!(rollout.waves.iter().all(|wave| (1..=SEED_COUNT).contains(&wave.seed_below)));
        let plan = &rollout.plan;
        for step in [plan.shadow, plan.canary, plan.soak] {
            assert!((0.0..=1.0).contains(&step.share) && step.min_s <= step.max_s, "{step:?}");
        }
        assert!(plan.max_attempts > 0);
        assert!(plan.gate.golden_min.is_none_or(|share| (0.0..=1.0).contains(&share)));
        assert_eq!(plan.target.to_string().parse().as_ref(), Ok(&plan.target));
    }
    true
}

/// Reads the file of the stored manifest; true when the box may continue with it.
///
/// # Panics
/// When an invariant does not hold.
pub fn fuzz_kept_manifest(data: &[u8]) -> bool {
    let fleet = "shops".parse().unwrap_or_else(|_| unreachable!("a valid name"));
    manifest_file::fuzz(data, "https://updates.example/", &fleet)
}
