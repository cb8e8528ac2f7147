//! The metrics of the audit log.

use std::fmt::Error;

use ledge_part::metrics::{family, gauge_value, label, single};
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

use crate::status::AuditStatus;

/// The events that the queue accepted since the start, and those lost because it was full.
#[derive(Debug, Clone, Copy)]
pub struct AuditQueueCounts {
    pub recorded: u64,
    pub lost: u64,
}

/// Writes the metrics of the audit log as of `now_ms`.
pub fn encode(
    encoder: &mut DescriptorEncoder<'_>,
    status: &AuditStatus,
    queued: AuditQueueCounts,
    now_ms: u64,
) -> Result<(), Error> {
    let events = [("recorded", queued.recorded), ("lost", queued.lost)];
    let events = events.map(|(outcome, count)| (label("outcome", outcome), ConstCounter::new(count)));
    family(encoder, "audit_events", "Audit events taken, and lost to a full queue", events)?;
    let mut gauge = |name, help, figure| single(encoder, name, help, &ConstGauge::new(figure));
    if let Some(log) = status.log {
        gauge("audit_records", "Records of the audit log that are durable", gauge_value(log.size))?;
        gauge(
            "audit_first_record",
            "The first record of the audit log that is still on this box",
            gauge_value(log.first),
        )?;
        gauge("audit_log_bytes", "Bytes that the audit log takes on the disk", gauge_value(log.bytes))?;
    }
    gauge("audit_quota_bytes", "Bytes that the audit log may take (audit.quota_mb)", gauge_value(status.quota))?;
    let help = "1 when the audit log cannot be written: what is recorded is lost";
    gauge("audit_failed", help, i64::from(status.error.is_some()))?;
    let help = "1 while an audit log that could not be continued is on this box";
    gauge("audit_alarm", help, i64::from(status.alarm.is_some()))?;

    if let Some(sync) = &status.sync {
        if let Some(log) = status.log {
            let unsynced = log.size.saturating_sub(sync.size);
            gauge("audit_unsynced_records", "Records that the platform does not have", gauge_value(unsynced))?;
        }
        let since = sync.waiting_since_ms.map_or(0, |since_ms| now_ms.saturating_sub(since_ms) / 1000);
        let help = "Seconds since the oldest record that the platform does not have was written; 0 when it has all";
        gauge("audit_unsynced_seconds", help, gauge_value(since))?;
        let help = "1 when the copy of the audit log does not go on";
        gauge("audit_sync_failed", help, i64::from(sync.error.is_some()))?;
    }

    let (calls, others) = status.lost;
    let lost = [("inference", calls), ("other", others)];
    let lost = lost.map(|(kind, count)| (label("kind", kind), ConstCounter::new(count)));
    family(encoder, "audit_lost", "Events that never became records since the start, by kind", lost)?;
    let copies = status.copies.iter().flat_map(|copy| {
        [("sent", copy.sent), ("lost", copy.lost)].map(|(outcome, count)| {
            let labels = vec![("copy", copy.name.to_owned()), ("outcome", outcome.to_owned())];
            (labels, ConstCounter::new(count))
        })
    });
    family(encoder, "audit_copied_records", "Records sent by live copies since the start, and not sent", copies)?;
    let failed = status.copies.iter();
    let failed = failed.map(|copy| (label("copy", copy.name), ConstGauge::new(i64::from(copy.error.is_some()))));
    family(encoder, "audit_copy_failed", "1 when a live copy does not go on", failed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::{AuditSyncStatus, LiveCopyStatus, LocalLogFigures};

    fn samples(status: AuditStatus) -> Vec<String> {
        let queued = AuditQueueCounts { recorded: 20, lost: 3 };
        ledge_part::metrics::samples(move |encoder| encode(encoder, &status, queued, 1_795_132_860_000))
    }

    #[test]
    fn every_figure_has_a_sample() {
        let status = AuditStatus {
            log: Some(LocalLogFigures { size: 100, first: 7, bytes: 5000 }),
            quota: 9000,
            alarm: Some("cut".into()),
            lost: (4, 1),
            sync: Some(AuditSyncStatus {
                size: 90,
                waiting_since_ms: Some(1_795_132_800_500),
                error: Some("away".into()),
                ..AuditSyncStatus::default()
            }),
            copies: vec![LiveCopyStatus { name: "syslog", sent: 80, lost: 2, ..LiveCopyStatus::default() }],
            ..AuditStatus::default()
        };
        let expected = [
            "ledge_audit_events_total{outcome=\"recorded\"} 20",
            "ledge_audit_events_total{outcome=\"lost\"} 3",
            "ledge_audit_records 100",
            "ledge_audit_first_record 7",
            "ledge_audit_log_bytes 5000",
            "ledge_audit_quota_bytes 9000",
            "ledge_audit_failed 0",
            "ledge_audit_alarm 1",
            "ledge_audit_unsynced_records 10",
            "ledge_audit_unsynced_seconds 59",
            "ledge_audit_sync_failed 1",
            "ledge_audit_lost_total{kind=\"inference\"} 4",
            "ledge_audit_lost_total{kind=\"other\"} 1",
            "ledge_audit_copied_records_total{copy=\"syslog\",outcome=\"sent\"} 80",
            "ledge_audit_copied_records_total{copy=\"syslog\",outcome=\"lost\"} 2",
            "ledge_audit_copy_failed{copy=\"syslog\"} 0",
        ];
        assert_eq!(samples(status), expected);
    }

    #[test]
    fn a_log_without_copies_has_no_figures_of_them() {
        let found = samples(AuditStatus { error: Some("no room".into()), ..AuditStatus::default() });
        assert!(found.contains(&"ledge_audit_failed 1".to_owned()));
        assert!(!found.iter().any(|sample| sample.contains("sync") || sample.contains("cop")), "{found:?}");
    }
}
