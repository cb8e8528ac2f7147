//! Closed loops: each caller sends its next request after the answer.

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::process::{self, Sizes};

/// The result of a command. Times are of one operation, in microseconds.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Figures {
    pub operations: usize,
    pub seconds: f64,
    pub p50_us: f64,
    pub p99_us: f64,
    pub max_us: f64,
    pub cpu_us: f64,
    pub sizes: Option<Sizes>,
    pub note: String,
}

impl Figures {
    /// The figures of an operation that was done once.
    pub fn once(seconds: f64) -> Self {
        Self { seconds, ..Self::default() }
    }

    /// The figures of latencies in nanoseconds.
    pub fn of(mut latencies: Vec<u32>, watch: &Watch) -> Self {
        let (seconds, spent_us) = (watch.started.elapsed().as_secs_f64(), process::cpu_us() - watch.cpu_us);
        latencies.sort_unstable();
        #[expect(
            clippy::cast_precision_loss,
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a rank"
        )]
        let at = |share: f64| {
            let rank = (latencies.len() as f64 * share) as usize;
            latencies.get(rank.min(latencies.len().saturating_sub(1))).map_or(0.0, |ns| f64::from(*ns) / 1e3)
        };
        let (p50_us, p99_us, max_us) = (at(0.5), at(0.99), at(1.0));
        let cpu_us = spent_us / rank_of(latencies.len()) - watch.request_us;
        Self { operations: latencies.len(), seconds, p50_us, p99_us, max_us, cpu_us, ..Self::default() }
    }

    /// The figures of operations with `rows` rows each: rows are counted, and latencies are those of a whole operation.
    pub fn of_rows(latencies: Vec<u32>, rows: usize, watch: &Watch) -> Self {
        let each = Self::of(latencies, &Watch { request_us: 0.0, ..*watch });
        let cpu_us = each.cpu_us * rank_of(each.operations) / rank_of(rows) - watch.request_us;
        Self { operations: rows, cpu_us, ..each }
    }
}

#[expect(clippy::cast_precision_loss, reason = "a figure for people")]
fn rank_of(count: usize) -> f64 {
    count.max(1) as f64
}

/// The start of a measurement, and the CPU time to subtract.
#[derive(Debug, Clone, Copy)]
pub struct Watch {
    started: Instant,
    cpu_us: f64,
    /// The CPU time of making a request, which is subtracted from that of the operation.
    request_us: f64,
}

impl Watch {
    /// Starts now, after measuring the CPU time of making a request.
    pub fn start<R>(request: impl Fn(&mut Random) -> R) -> Self {
        const REQUESTS: u32 = 10_000;
        Self::start_after(REQUESTS, 1.0, request)
    }

    /// The same with `times` requests of `rows` rows each.
    pub fn start_after<R>(times: u32, rows: f64, request: impl Fn(&mut Random) -> R) -> Self {
        let mut random = Random::new(1);
        let before_us = process::thread_cpu_us();
        for _ in 0..times {
            std::hint::black_box(request(&mut random));
        }
        let request_us = (process::thread_cpu_us() - before_us) / f64::from(times) / rows;
        Self { started: Instant::now(), cpu_us: process::cpu_us(), request_us }
    }
}

/// Numbers that look random, the same in every run (`SplitMix64`).
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// Another sequence for each seed.
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    /// The next one below `end`.
    pub fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % end.max(1)
    }
}

/// Runs one caller on this thread until the time is over. Returns latencies in nanoseconds.
pub fn repeat<R>(seconds: f64, mut request: impl FnMut() -> R, mut call: impl FnMut(R)) -> Vec<u32> {
    let mut latencies = Vec::new();
    let end = Instant::now() + Duration::from_secs_f64(seconds);
    loop {
        let request = request();
        let started = Instant::now();
        call(request);
        let now = Instant::now();
        latencies.push(nanoseconds(now - started));
        if now >= end {
            return latencies;
        }
    }
}

/// Runs each caller on a separate thread.
pub fn threads<R>(
    callers: usize,
    seconds: f64,
    request: impl Fn(&mut Random) -> R + Sync,
    call: impl Fn(R) + Sync,
) -> Vec<u32> {
    let one = |caller: usize| {
        let mut random = Random::new(caller as u64 + process::seed());
        repeat(seconds, || request(&mut random), &call)
    };
    if callers == 1 {
        return one(0);
    }
    std::thread::scope(|scope| {
        let one = &one;
        let running: Vec<_> = (0..callers).map(|caller| scope.spawn(move || one(caller))).collect();
        running.into_iter().flat_map(|running| running.join().unwrap()).collect()
    })
}

/// A time in the form of a stored latency.
pub fn nanoseconds(time: Duration) -> u32 {
    u32::try_from(time.as_nanos()).unwrap_or(u32::MAX)
}
