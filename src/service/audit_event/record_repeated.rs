//! Recording of events that repeat.

use std::time::Instant;

use ledge_base::principal::Principal;

use super::AuditEvent;
use super::repeated::RepeatedEvent;
use super::sink::AuditSink;

impl AuditSink {
    /// Records that a caller lacked a permission. Repeated requests must not fill the log: each kind has one record a
    /// minute at most, for each caller known by name and for all others together, with the number of events without a
    /// record.
    pub fn record_denied(&self, principal: &Principal, what: &'static str) {
        self.record_repeated(principal, RepeatedEvent::Access(what));
    }

    /// Records that a credential was refused, as seldom as denials, by cause.
    pub fn record_unauthenticated(&self, principal: &Principal, cause: &'static str) {
        self.record_repeated(principal, RepeatedEvent::Authentication(cause));
    }

    /// Records that an outbound connection was opened: one record a minute at most for each destination and purpose,
    /// with the number of connections without a record.
    pub fn record_connection(&self, destination: String, region: String, purpose: &'static str) {
        self.record_repeated(&Principal::Local, RepeatedEvent::Connection { destination, region, purpose });
    }

    fn record_repeated(&self, principal: &Principal, what: RepeatedEvent) {
        let event = self.repeated().state().again(principal, what, Instant::now());
        if let Some(event) = event {
            self.record(principal, event);
        }
    }

    /// Records that the disk has no room for something, or has room again: once for each change.
    pub fn record_space(&self, what: &'static str, enough: bool) {
        let mut state = self.repeated().state();
        let is_new = if enough { state.without_room.remove(what) } else { state.without_room.insert(what) };
        drop(state);
        if is_new {
            self.record_own(AuditEvent::SpaceChanged { what: what.into(), enough });
        }
    }
}
