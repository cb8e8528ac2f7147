//! A daemon whose clock is moved on before each of its samples, which come every five seconds: a minute or more passes
//! with each.

use std::path::Path;
use std::time::Duration;

use crate::daemon::TestDaemon;
use crate::feature_faults::shim::{Number, Shim};

const DAY_S: u64 = 86_400;
const BEGIN_HOUR: u64 = 10;
/// The clock is set so far into a minute, so that a sample and the one before are never in the same.
const INTO_MINUTE_S: u64 = 25;

/// The clock of a daemon with the shim.
pub struct MovedClock {
    ahead: Number,
    begin_s: u64,
    step: Duration,
    steps: u32,
}

impl MovedClock {
    /// A clock at ten of the next day, with whole minutes in a step.
    pub fn new(shim: &Shim, step: Duration) -> Self {
        let begin_s = (now_s() / DAY_S + 1) * DAY_S + BEGIN_HOUR * 3600;
        let clock = Self { ahead: shim.number("clock", 0), begin_s, step, steps: 0 };
        clock.set();
        clock
    }

    /// The value of `FAULT_CLOCK`.
    pub fn path(&self) -> &Path {
        &self.ahead.path
    }

    /// The begin of the minute of now, in milliseconds since the Unix epoch.
    pub fn minute_ms(&self) -> u64 {
        (self.begin_s + (self.step * self.steps).as_secs()) * 1000
    }

    /// Moves the clock on by one step.
    pub fn move_on(&mut self) {
        self.steps += 1;
        self.set();
    }

    /// Moves the clock on by one step, and waits for the sample that ends the minute before.
    pub fn step(&mut self, daemon: &TestDaemon) {
        self.move_on();
        let answer = daemon.client().get("/figures/live?events=1");
        assert_eq!(answer.status, 200, "{answer:?}");
    }

    fn set(&self) {
        let ahead = self.minute_ms() / 1000 + INTO_MINUTE_S - now_s();
        self.ahead.set(ahead.try_into().unwrap());
    }
}

fn now_s() -> u64 {
    ledge::clock::unix_millis() / 1000
}
