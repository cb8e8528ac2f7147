//! Sends the requests of one load and measures each from the time it should have been sent.
//!
//! A caller is a thread that waits for its answer. In an open loop the callers take the arrivals in order; one that
//! comes while all wait is sent late and measured from its due time all the same, so a slow server cannot hide behind
//! its own slowness (coordinated omission).

use std::num::NonZero;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{anyhow, bail};

use super::figures::{NOT_SENT_KIND, Outcome, Recording};
use super::load::{Arrivals, Load, schedule};
use super::process::Usage;
use super::random::Random;

/// A target that answers requests.
pub trait Target: Sync {
    /// Its name in the figures.
    fn name(&self) -> &'static str;

    /// The usage of the processes that answer, if they are known and on this machine.
    fn usage(&self) -> Option<Usage>;

    /// A new caller.
    fn caller(&self) -> anyhow::Result<Box<dyn Caller + '_>>;
}

/// A caller, which sends one request after the other.
pub trait Caller: Send {
    /// Sends request number `number` and waits for the answer.
    fn call(&mut self, number: usize) -> Outcome;
}

/// The time and the arrivals of one measurement.
#[derive(Debug, Clone, Copy)]
pub struct DrivePlan {
    /// The time in which requests are sent.
    pub duration: Duration,
    /// The arrivals of an open loop.
    pub arrivals: Arrivals,
    /// The callers of an open loop.
    pub callers: usize,
    /// The seed of the arrivals of an open loop. Targets to compare get the same arrivals.
    pub seed: u64,
}

/// The time for the threads to start before the first request.
const START_DELAY: Duration = Duration::from_millis(5);

/// The longest time after the end of an open loop in which late requests are still sent. The others count as not sent:
/// the server cannot keep up.
const LATE_SEND_TIME: Duration = Duration::from_secs(2);

/// Sends the requests of `load` to `target` until the time is over or `stop` is set.
pub fn drive(target: &dyn Target, load: Load, plan: &DrivePlan, stop: &AtomicBool) -> anyhow::Result<Recording> {
    let (callers, due) = match load {
        Load::Concurrency(callers) => (callers, None),
        Load::Rate(rate) => {
            let due = schedule(rate, plan.duration, plan.arrivals, &mut Random::seeded(plan.seed));
            (plan.callers, Some(due))
        }
    };

    // Connected before the measurement starts.
    let callers: Vec<_> =
        (0..callers).map(|_| Ok((target.caller()?, Recording::new()?))).collect::<anyhow::Result<_>>()?;
    let next = AtomicUsize::new(0);
    let start = Instant::now() + START_DELAY;
    let end = start + plan.duration;
    let mut whole = Recording::new()?;
    std::thread::scope(|scope| {
        let threads: Vec<_> = callers
            .into_iter()
            .map(|(mut caller, mut recording)| {
                let (next, due) = (&next, due.as_deref());
                scope.spawn(move || {
                    set_timer_slack();
                    match due {
                        None => closed(&mut *caller, &mut recording, next, start..end, stop),
                        Some(due) => open(&mut *caller, &mut recording, next, due, start..end, stop),
                    }
                    recording
                })
            })
            .collect();
        for thread in threads {
            whole.add(&thread.join().map_err(|_| anyhow!("a caller panicked"))?);
        }
        Ok::<_, anyhow::Error>(())
    })?;

    if stop.load(Ordering::Relaxed) {
        bail!("interrupted");
    }
    if let Some(due) = due {
        let unsent = due.len().saturating_sub(next.load(Ordering::Relaxed));
        if unsent > 0 {
            whole.fail(NOT_SENT_KIND.to_owned(), unsent as u64);
        }
    }
    Ok(whole)
}

fn closed(
    caller: &mut dyn Caller,
    recording: &mut Recording,
    next: &AtomicUsize,
    time: std::ops::Range<Instant>,
    stop: &AtomicBool,
) {
    sleep_until(time.start);
    loop {
        let sent = Instant::now();
        if sent >= time.end || stop.load(Ordering::Relaxed) {
            return;
        }
        let outcome = caller.call(next.fetch_add(1, Ordering::Relaxed));
        let answered = Instant::now();
        recording.record(outcome, answered - sent);
        recording.elapsed = answered - time.start;
    }
}

fn open(
    caller: &mut dyn Caller,
    recording: &mut Recording,
    next: &AtomicUsize,
    due: &[Duration],
    time: std::ops::Range<Instant>,
    stop: &AtomicBool,
) {
    while Instant::now() < time.end + LATE_SEND_TIME && !stop.load(Ordering::Relaxed) {
        let number = next.fetch_add(1, Ordering::Relaxed);
        let Some(offset) = due.get(number) else { return };
        let due = time.start + *offset;
        sleep_until(due);
        let outcome = caller.call(number);
        let answered = Instant::now();
        recording.record(outcome, answered - due);
        // The whole duration counts, also without arrivals at its end.
        recording.elapsed = (answered - time.start).max(time.end - time.start);
    }
}

fn sleep_until(time: Instant) {
    std::thread::sleep(time.saturating_duration_since(Instant::now()));
}

/// Sets the timer slack of this thread to 1 ns. By default Linux wakes a thread up to 50 µs late to save power, which
/// would count as time of the server.
fn set_timer_slack() {
    // If the kernel refuses, latencies are up to 50 µs higher.
    let _ = rustix::thread::set_current_timer_slack(NonZero::new(1));
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Answers after a fixed time; every tenth request fails.
    #[derive(Default)]
    struct Fixed {
        service: Duration,
        calls: AtomicUsize,
        under_way: AtomicUsize,
        most_under_way: AtomicUsize,
    }

    impl Target for Fixed {
        fn name(&self) -> &'static str {
            "fixed"
        }

        fn usage(&self) -> Option<Usage> {
            None
        }

        fn caller(&self) -> anyhow::Result<Box<dyn Caller + '_>> {
            Ok(Box::new(self))
        }
    }

    impl Caller for &Fixed {
        fn call(&mut self, number: usize) -> Outcome {
            self.calls.fetch_add(1, Ordering::SeqCst);
            let under_way = self.under_way.fetch_add(1, Ordering::SeqCst) + 1;
            self.most_under_way.fetch_max(under_way, Ordering::SeqCst);
            std::thread::sleep(self.service);
            self.under_way.fetch_sub(1, Ordering::SeqCst);
            match number % 10 {
                9 => Outcome::Failed { kind: "429".into(), message: String::new() },
                _ => Outcome::Ok,
            }
        }
    }

    fn fixed(service: u64) -> Fixed {
        Fixed { service: Duration::from_millis(service), ..Fixed::default() }
    }

    fn drive_fixed(target: &Fixed, load: Load, duration: u64, callers: usize) -> Recording {
        let plan =
            DrivePlan { duration: Duration::from_millis(duration), arrivals: Arrivals::Constant, callers, seed: 1 };
        drive(target, load, &plan, &AtomicBool::new(false)).unwrap()
    }

    #[test]
    fn every_arrival_of_an_open_loop_is_counted_once() {
        let figures = drive_fixed(&fixed(0), Load::Rate(1000.0), 100, 4).figures(None, None, 1);
        assert_eq!((figures.answered, figures.errors["429"]), (90, 10));
    }

    #[test]
    fn a_request_that_had_to_wait_for_a_caller_is_measured_from_its_due_time() {
        // One caller, 10 ms a request, one due each millisecond: the last of 20 is due at 19 ms and answered at 200 ms.
        let recording = drive_fixed(&fixed(10), Load::Rate(1000.0), 20, 1);
        assert!(recording.quantile(1.0).unwrap() > 150.0, "{:?}", recording.quantile(1.0));
    }

    #[test]
    fn every_call_of_a_closed_loop_is_counted_and_no_caller_asks_twice_at_once() {
        let target = fixed(1);
        let recording = drive_fixed(&target, Load::Concurrency(3), 50, 0);
        let figures = recording.figures(None, None, 1);
        let counted = figures.answered + figures.errors.values().sum::<u64>();
        assert_eq!(counted, target.calls.load(Ordering::SeqCst) as u64);
        assert!(target.most_under_way.load(Ordering::SeqCst) <= 3);
    }

    #[test]
    fn a_stop_interrupts_the_drive() {
        let plan = DrivePlan { duration: Duration::from_hours(1), arrivals: Arrivals::Poisson, callers: 2, seed: 1 };
        for load in [Load::Concurrency(2), Load::Rate(10.0)] {
            let error = drive(&fixed(0), load, &plan, &AtomicBool::new(true)).unwrap_err();
            assert_eq!(error.to_string(), "interrupted");
        }
    }
}
