//! The rules of a rollout.

use super::SEED_COUNT;
use crate::plan::{RolloutGate, RolloutPlan, StagePlan};
use crate::rollout::waves::Wave;

/// The most waves of a rollout.
pub(in super::super) const MAX_WAVES: usize = 64;

/// Longest time of a stage or a wave, in seconds: 90 days.
const STAGE_MAX_S: u64 = 90 * 86_400;

/// Most attempts that a rollout may allow.
const MAX_ATTEMPTS: u32 = 1_000;

/// Adds the mistakes of waves to `mistakes`.
pub fn waves(waves: &[Wave], mistakes: &mut Vec<String>) {
    if waves.len() > MAX_WAVES {
        mistakes.push(format!("{} waves, {MAX_WAVES} at most", waves.len()));
    }
    for wave in waves.iter().take(MAX_WAVES) {
        if !(1..=SEED_COUNT).contains(&wave.seed_below) {
            mistakes.push(format!("waves: seed_below {} is not from 1 to {SEED_COUNT}", wave.seed_below));
        }
        if wave.after_s > STAGE_MAX_S {
            mistakes.push(format!("waves: after_s {} is more than {STAGE_MAX_S}", wave.after_s));
        }
    }
}

/// Adds the mistakes of a plan to `mistakes`.
pub fn plan(plan: &RolloutPlan, mistakes: &mut Vec<String>) {
    let RolloutGate { golden_min, agreement_min, p95_ratio_max, error_rate_max, memory_ratio_max, psi_max } = plan.gate;
    let shares = [("golden_min", golden_min), ("agreement_min", agreement_min), ("error_rate_max", error_rate_max)];
    for (key, share) in shares {
        if share.is_some_and(|share| !(0.0..=1.0).contains(&share)) {
            mistakes.push(format!("gate.{key} is not from 0 to 1"));
        }
    }
    for (key, ratio) in [("p95_ratio_max", p95_ratio_max), ("memory_ratio_max", memory_ratio_max), ("psi_max", psi_max)]
    {
        if ratio.is_some_and(|ratio| !ratio.is_finite() || ratio <= 0.0) {
            mistakes.push(format!("gate.{key} is not more than 0"));
        }
    }
    step("shadow", &plan.shadow, mistakes);
    step("canary", &plan.canary, mistakes);
    step("soak", &plan.soak, mistakes);
    if !(1..=MAX_ATTEMPTS).contains(&plan.max_attempts) {
        mistakes.push(format!("max_attempts {} is not from 1 to {MAX_ATTEMPTS}", plan.max_attempts));
    }
}

fn step(name: &str, step: &StagePlan, mistakes: &mut Vec<String>) {
    if !(0.0..=1.0).contains(&step.share) {
        mistakes.push(format!("{name}.share is not from 0 to 1"));
    }
    if step.max_s > STAGE_MAX_S {
        mistakes.push(format!("{name}.max_s {} is more than {STAGE_MAX_S}", step.max_s));
    }
    if step.min_s > step.max_s {
        mistakes.push(format!("{name}.min_s {} is more than max_s, {}", step.min_s, step.max_s));
    }
}
