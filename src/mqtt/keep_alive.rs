//! Finds out whether the broker is still there (MQTT 5.0, section 3.1.2.10). Pure: times and counts are passed in.
//!
//! Every byte counts, not every packet: over a slow link a large message takes longer than any timeout.

use std::time::{Duration, Instant};

/// Time without a byte in either direction after a ping, from which on the broker counts as gone.
pub const PING_TIMEOUT: Duration = Duration::from_secs(10);

/// The bytes that a connection has carried.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ByteCounts {
    pub received: u64,
    pub sent: u64,
}

/// The next action on the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeepAliveAction {
    Wait,
    Ping,
    /// The broker counts as gone: close the connection.
    Dead,
}

/// See the module.
#[derive(Debug)]
pub struct KeepAlive {
    interval: Duration,
    bytes: ByteCounts,
    last_sent: Instant,
    /// The time of the last byte since the open ping.
    pinged: Option<Instant>,
}

impl KeepAlive {
    /// For a connection on which this side sends something at least every `interval`; zero is never.
    pub fn new(interval: Duration, now: Instant) -> Self {
        let interval = if interval.is_zero() { Duration::from_hours(24) } else { interval };
        Self { interval, bytes: ByteCounts::default(), last_sent: now, pinged: None }
    }

    /// The action when the connection has carried `bytes` until now.
    pub fn check(&mut self, bytes: ByteCounts, now: Instant) -> KeepAliveAction {
        let before = std::mem::replace(&mut self.bytes, bytes);
        if bytes.sent != before.sent {
            self.last_sent = now;
        }
        if bytes.received != before.received {
            self.pinged = None;
        }
        match &mut self.pinged {
            // Over a slow link the ping itself takes time to leave.
            Some(since) if bytes.sent != before.sent => *since = now,
            Some(since) if now >= *since + PING_TIMEOUT => return KeepAliveAction::Dead,
            None if now >= self.last_sent + self.interval => {
                self.pinged = Some(now);
                self.last_sent = now;
                return KeepAliveAction::Ping;
            }
            Some(_) | None => {}
        }
        KeepAliveAction::Wait
    }

    /// Restarts the timeout of an open ping: this side does not read now, so silence says nothing.
    pub fn stopped_reading(&mut self, now: Instant) {
        if let Some(since) = &mut self.pinged {
            *since = now;
        }
    }

    /// The latest time for the next [`Self::check`].
    pub fn next(&self) -> Instant {
        self.pinged.map_or(self.last_sent + self.interval, |since| since + PING_TIMEOUT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keep_alive() -> (KeepAlive, impl Fn(u64) -> Instant) {
        let start = Instant::now();
        (KeepAlive::new(Duration::from_secs(30), start), move |seconds| start + Duration::from_secs(seconds))
    }

    fn moved(received: u64, sent: u64) -> ByteCounts {
        ByteCounts { received, sent }
    }

    #[test]
    fn a_silent_broker_is_asked_once_and_given_up_when_it_does_not_answer() {
        let (mut keep_alive, after) = keep_alive();
        assert_eq!(keep_alive.check(moved(0, 0), after(29)), KeepAliveAction::Wait);
        assert_eq!(keep_alive.check(moved(0, 0), after(30)), KeepAliveAction::Ping);
        // The ping itself.
        assert_eq!(keep_alive.check(moved(0, 2), after(31)), KeepAliveAction::Wait);
        assert_eq!(keep_alive.next(), after(41));
        assert_eq!(keep_alive.check(moved(2, 2), after(35)), KeepAliveAction::Wait);
        assert_eq!(keep_alive.next(), after(61));
        assert_eq!(keep_alive.check(moved(2, 2), after(61)), KeepAliveAction::Ping);
        assert_eq!(keep_alive.check(moved(2, 2), after(70)), KeepAliveAction::Wait);
        assert_eq!(keep_alive.check(moved(2, 2), after(71)), KeepAliveAction::Dead);
    }

    #[test]
    fn a_client_that_does_not_read_gives_no_broker_up() {
        let (mut keep_alive, after) = keep_alive();
        assert_eq!(keep_alive.check(moved(0, 0), after(30)), KeepAliveAction::Ping);
        keep_alive.stopped_reading(after(45));
        assert_eq!(keep_alive.check(moved(0, 0), after(54)), KeepAliveAction::Wait);
        assert_eq!(keep_alive.check(moved(0, 0), after(55)), KeepAliveAction::Dead);
    }

    #[test]
    fn a_large_message_over_a_slow_link_is_a_sign_of_life_for_as_long_as_it_moves() {
        let (mut keep_alive, after) = keep_alive();
        assert_eq!(keep_alive.check(moved(0, 0), after(30)), KeepAliveAction::Ping);
        for second in 31..200 {
            assert_ne!(
                keep_alive.check(moved(second, 0), after(second)),
                KeepAliveAction::Dead,
                "coming, second {second}"
            );
        }
        for second in 200..400 {
            assert_ne!(
                keep_alive.check(moved(0, second), after(second)),
                KeepAliveAction::Dead,
                "going, second {second}"
            );
        }
    }
}
