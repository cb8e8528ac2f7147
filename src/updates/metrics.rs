//! The metrics of signed updates.

use std::fmt::Error;

use ledge_part::metrics::{family, gauge_value, label, single};
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

use crate::state::RolloutPhase;
use crate::status::UpdatesStatus;
use crate::status_report::IDLE_STAGE;

/// The stages of a subject, in their order.
const STAGE_NAMES: [&str; 7] = [
    IDLE_STAGE,
    RolloutPhase::Downloading.name(),
    RolloutPhase::Verified.name(),
    RolloutPhase::Staged.name(),
    RolloutPhase::Shadow.name(),
    RolloutPhase::Canary.name(),
    RolloutPhase::Active.name(),
];

/// Writes the metrics of updates as of `now_ms`.
pub fn encode(encoder: &mut DescriptorEncoder<'_>, status: &UpdatesStatus, now_ms: u64) -> Result<(), Error> {
    let stages = status.subjects.iter().flat_map(|(subject, state)| {
        let current = state.trial.as_ref().map_or(IDLE_STAGE, |trial| trial.stage.name());
        STAGE_NAMES.map(|stage| {
            let labels = vec![("subject", subject.to_string()), ("stage", stage.to_owned())];
            (labels, ConstGauge::new(i64::from(stage == current)))
        })
    });
    family(encoder, "update_stage", "1 for the stage that the update of a subject is in, 0 for the others", stages)?;
    if let Some(checked_ms) = status.check.checked_ms {
        let help = "When the platform was last heard, in seconds since the Unix epoch";
        single(encoder, "update_checked_timestamp_seconds", help, &ConstGauge::new(gauge_value(checked_ms / 1000)))?;
    }
    let failed = ConstGauge::new(i64::from(status.check.error.is_some()));
    single(encoder, "update_check_failed", "1 when the last look at the platform failed", &failed)?;
    let bytes = ConstCounter::new(status.fetched_bytes);
    single(encoder, "update_bytes", "Bytes fetched for updates since the start", &bytes)?;
    let rollbacks = status.rollbacks.iter().map(|(cause, count)| (label("cause", cause), ConstCounter::new(*count)));
    family(encoder, "update_rollbacks", "Updates rolled back since the start, by cause", rollbacks)?;
    let versions = status.check.roles.iter();
    let versions = versions.map(|(role, status)| (label("role", role), ConstGauge::new(gauge_value(status.version))));
    family(encoder, "update_metadata_version", "Version of the trusted metadata, by role", versions)?;
    if let Some(expires_ms) = status.check.earliest_expiry_ms() {
        let left = gauge_value(expires_ms / 1000) - gauge_value(now_ms / 1000);
        let help = "Seconds until the first of the trusted metadata expires; negative when it has";
        single(encoder, "update_metadata_expires_seconds", help, &ConstGauge::new(left))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status_example;

    #[test]
    fn every_figure_has_a_sample() {
        let status = status_example::status();
        let samples = ledge_part::metrics::samples(move |encoder| encode(encoder, &status, 1_795_132_860_000));
        let expected = [
            "ledge_update_stage{subject=\"models/m\",stage=\"idle\"} 0",
            "ledge_update_stage{subject=\"models/m\",stage=\"downloading\"} 0",
            "ledge_update_stage{subject=\"models/m\",stage=\"verified\"} 0",
            "ledge_update_stage{subject=\"models/m\",stage=\"staged\"} 1",
            "ledge_update_stage{subject=\"models/m\",stage=\"shadow\"} 0",
            "ledge_update_stage{subject=\"models/m\",stage=\"canary\"} 0",
            "ledge_update_stage{subject=\"models/m\",stage=\"active\"} 0",
            "ledge_update_checked_timestamp_seconds 1795132800",
            "ledge_update_check_failed 1",
            "ledge_update_bytes_total 1234",
            "ledge_update_rollbacks_total{cause=\"golden\"} 2",
            "ledge_update_metadata_version{role=\"root\"} 3",
            "ledge_update_metadata_version{role=\"timestamp\"} 41",
            "ledge_update_metadata_expires_seconds 3540",
        ];
        assert_eq!(samples, expected);
    }
}
