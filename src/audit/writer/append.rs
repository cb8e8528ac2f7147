//! Makes entries into durable records.

use std::sync::Arc;

use ledge_service::audit_event::AuditQueue;
use ledge_service::audit_event::sink::{LostEntries, QueuedEntry};

use super::super::log::AuditLogError;
use super::super::record::{Actor, AuditRecord, Timestamp, VERSION};
use super::super::status::LiveCopyRecord;
use super::entries;
use super::open_log::OpenAuditLog;

/// Entries that were appended.
pub struct AppendedEntries {
    /// The records as live copies get them.
    pub live: Vec<Arc<LiveCopyRecord>>,
    /// The entries that are too long for a record.
    pub left_out: LostEntries,
}

/// Appends records and makes them durable, all or none.
pub fn append(
    open: &mut OpenAuditLog,
    entries: Vec<QueuedEntry>,
    queue: &AuditQueue,
) -> Result<AppendedEntries, AuditLogError> {
    let key = open.tags.current();
    let origin: Arc<str> = open.log.origin().into();
    let mut records = Vec::with_capacity(entries.len());
    let mut left_out = LostEntries { since_ms: u64::MAX, calls: 0, events: 0 };

    for entry in entries {
        let lost = entries::sum(std::slice::from_ref(&entry), entry.at_ms);
        let (principal, event) = entries::resolve(entry.what, Some(&key), queue);
        let (action, is_warning) = (event.action(), event.is_warning());
        let is_of_calls = event.calls().is_some();
        let record = AuditRecord {
            v: VERSION,
            seq: open.log.size(),
            ts: Timestamp(entry.at_ms),
            actor: Actor::of(&principal, Some(&key)),
            event,
        };
        let line = record.to_line();
        let leaf = match open.log.append(&line) {
            Err(error @ AuditLogError::TooLong { .. }) => {
                // No event should be so long; the other entries must not be lost for it.
                tracing::error!(%error, action, "an audit event is too long for a record and is dropped");
                left_out.since_ms = left_out.since_ms.min(lost.since_ms);
                left_out.calls += lost.calls;
                left_out.events += lost.events;
                continue;
            }
            appended => appended?,
        };
        let copied = LiveCopyRecord {
            origin: origin.clone(),
            seq: record.seq,
            at_ms: entry.at_ms,
            leaf,
            action,
            is_warning,
            line,
        };
        records.push((Arc::new(copied), is_of_calls));
    }

    open.log.commit()?;
    for (record, is_of_calls) in &records {
        // Without the caller: a journal that has both the caller and the tag would outlive the key of the tag.
        let event = String::from_utf8_lossy(&record.line);
        if *is_of_calls {
            // A line for each call would fill the log of a busy box.
            tracing::debug!(target: "audit", %event);
        } else {
            tracing::info!(target: "audit", %event);
        }
    }

    let live = records.into_iter().map(|(record, ..)| record).collect();
    Ok(AppendedEntries { live, left_out })
}
