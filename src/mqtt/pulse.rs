//! Whether the broker is still there (MQTT 5.0, section 3.1.2.10). Pure: times and counts are passed in.
//!
//! Every byte counts, not every packet: over a slow link a large message takes longer than any patience.

use std::time::{Duration, Instant};

/// How long nothing may move after a sign of life was asked for.
const PATIENCE: Duration = Duration::from_secs(10);

/// How many bytes a connection has carried.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Moved {
    pub received: u64,
    /// From this side.
    pub sent: u64,
}

/// What to do about the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Beat {
    Rest,
    /// Ask for a sign of life.
    Ask,
    Dead,
}

/// See the module.
#[derive(Debug)]
pub struct Pulse {
    keep_alive: Duration,
    moved: Moved,
    last_sent: Instant,
    /// Since when nothing has moved, once a sign of life was asked for.
    asked: Option<Instant>,
}

impl Pulse {
    /// For a connection on which this side says something at least every `keep_alive`; zero is never.
    pub fn new(keep_alive: Duration, now: Instant) -> Self {
        let keep_alive = if keep_alive.is_zero() { Duration::from_hours(24) } else { keep_alive };
        Self { keep_alive, moved: Moved::default(), last_sent: now, asked: None }
    }

    /// What to do when so much has moved until now.
    pub fn beat(&mut self, moved: Moved, now: Instant) -> Beat {
        let before = std::mem::replace(&mut self.moved, moved);
        if moved.sent != before.sent {
            self.last_sent = now;
        }
        if moved.received != before.received {
            self.asked = None;
        }
        match &mut self.asked {
            // A long way out for what was asked, too.
            Some(since) if moved.sent != before.sent => *since = now,
            Some(since) if now >= *since + PATIENCE => return Beat::Dead,
            None if now >= self.last_sent + self.keep_alive => {
                self.asked = Some(now);
                self.last_sent = now;
                return Beat::Ask;
            }
            Some(_) | None => {}
        }
        Beat::Rest
    }

    /// This side does not listen now, so that silence says nothing.
    pub fn deaf(&mut self, now: Instant) {
        if let Some(since) = &mut self.asked {
            *since = now;
        }
    }

    /// When [`Self::beat`] is to be asked again at the latest.
    pub fn next(&self) -> Instant {
        self.asked.map_or(self.last_sent + self.keep_alive, |since| since + PATIENCE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pulse() -> (Pulse, impl Fn(u64) -> Instant) {
        let start = Instant::now();
        (Pulse::new(Duration::from_secs(30), start), move |seconds| start + Duration::from_secs(seconds))
    }

    fn moved(received: u64, sent: u64) -> Moved {
        Moved { received, sent }
    }

    #[test]
    fn a_silent_broker_is_asked_once_and_given_up_when_it_does_not_answer() {
        let (mut pulse, after) = pulse();
        assert_eq!(pulse.beat(moved(0, 0), after(29)), Beat::Rest);
        assert_eq!(pulse.beat(moved(0, 0), after(30)), Beat::Ask);
        // The question itself.
        assert_eq!(pulse.beat(moved(0, 2), after(31)), Beat::Rest);
        assert_eq!(pulse.next(), after(41));
        assert_eq!(pulse.beat(moved(2, 2), after(35)), Beat::Rest);
        assert_eq!(pulse.next(), after(61));
        assert_eq!(pulse.beat(moved(2, 2), after(61)), Beat::Ask);
        assert_eq!(pulse.beat(moved(2, 2), after(70)), Beat::Rest);
        assert_eq!(pulse.beat(moved(2, 2), after(71)), Beat::Dead);
    }

    #[test]
    fn who_does_not_listen_gives_nobody_up() {
        let (mut pulse, after) = pulse();
        assert_eq!(pulse.beat(moved(0, 0), after(30)), Beat::Ask);
        pulse.deaf(after(45));
        assert_eq!(pulse.beat(moved(0, 0), after(54)), Beat::Rest);
        assert_eq!(pulse.beat(moved(0, 0), after(55)), Beat::Dead);
    }

    #[test]
    fn a_large_message_over_a_slow_link_is_a_sign_of_life_for_as_long_as_it_moves() {
        let (mut pulse, after) = pulse();
        assert_eq!(pulse.beat(moved(0, 0), after(30)), Beat::Ask);
        for second in 31..200 {
            assert_ne!(pulse.beat(moved(second, 0), after(second)), Beat::Dead, "coming, second {second}");
        }
        for second in 200..400 {
            assert_ne!(pulse.beat(moved(0, second), after(second)), Beat::Dead, "going, second {second}");
        }
    }
}
