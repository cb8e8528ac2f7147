//! The serving core of verbs that need no server.

use ledge_service::audit_event::AuditSink;

use crate::config::Config;
use crate::daemon::Standalone;

/// The serving core over the configured repository, without any model loaded.
pub fn standalone(config: &Config) -> Standalone {
    // The verbs of the command line write no audit log.
    Standalone::new(config, AuditSink::to_nowhere())
}
