//! The time of cameras. A test passes its own in.

use std::fmt::Debug;
use std::pin::Pin;
use std::time::{Duration, Instant};

use ledge_base::clock;

/// A time, by both clocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Moment {
    /// Milliseconds of a clock that never jumps.
    pub steady_ms: u64,
    /// Milliseconds since the Unix epoch.
    pub unix_ms: u64,
}

impl Moment {
    /// For people, in RFC 3339 with milliseconds.
    pub fn text(self) -> String {
        text(self.unix_ms)
    }

    /// The milliseconds since an earlier moment.
    pub fn since_ms(self, earlier: Self) -> u64 {
        self.steady_ms.saturating_sub(earlier.steady_ms)
    }
}

/// Milliseconds since the Unix epoch for people, in RFC 3339.
pub fn text(unix_ms: u64) -> String {
    clock::rfc3339_micros(i64::try_from(unix_ms.saturating_mul(1000)).unwrap_or(i64::MAX))
}

/// Reads the time, and waits.
pub trait Clock: Debug + Send + Sync {
    fn now(&self) -> Moment;

    /// Waits until [`Moment::steady_ms`] is this, or returns at once if it is later already.
    fn sleep_until(&self, steady_ms: u64) -> Pin<Box<dyn Future<Output = ()> + Send + '_>>;
}

/// The clock of this machine.
#[derive(Debug)]
pub struct SystemClock {
    started: Instant,
}

impl Default for SystemClock {
    /// A clock with a steady time that starts at 0.
    fn default() -> Self {
        Self { started: Instant::now() }
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Moment {
        let steady_ms = u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX);
        Moment { steady_ms, unix_ms: clock::unix_millis() }
    }

    fn sleep_until(&self, steady_ms: u64) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        Box::pin(tokio::time::sleep_until((self.started + Duration::from_millis(steady_ms)).into()))
    }
}
