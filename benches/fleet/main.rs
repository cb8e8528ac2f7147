//! Thousands of boxes in one process. The state machine, the manifest, the waves and the reports are those of the
//! daemon; the network, the disk, the models and the time are simulated. `simulate.py` next to it has the clock and is
//! the platform.
//!
//! Lines of JSON. The first line describes the boxes ([`Fleet`]), the others are steps: `{"now_ms": 5, "manifest":
//! {...}}`, with the manifest only when another was published. The answer to a step has the reports of the boxes that
//! changed.

#![expect(clippy::unwrap_used, reason = "a benchmark that panics says where")]

mod device;

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io::{BufRead, Write};

use ledge::rollout::manifest::RolloutManifest;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use device::{Device, Published};

/// The description of the boxes.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fleet {
    /// The number of boxes: `box-0` and so on.
    pub boxes: u64,
    /// The seed of random decisions.
    pub luck: u64,
    /// The time of their start.
    pub now_ms: u64,
    /// The poll interval of each box, plus or minus a quarter.
    pub poll_s: u64,
    /// The share of boxes on which any release fails, such as those with a full disk.
    pub broken: f64,
    /// The share of boxes on which the new release fails.
    pub failing: f64,
    /// The stage in which it fails.
    pub fails_in: String,
    /// The cause of the failure, or `silent` when the box dies.
    pub cause: String,
}

#[derive(Deserialize)]
struct Step<'a> {
    now_ms: u64,
    #[serde(borrow)]
    manifest: Option<&'a RawValue>,
}

fn main() {
    let mut lines = std::io::stdin().lock().lines().map(|line| line.unwrap());
    // `cargo test` runs benches, too, without input.
    let Some(first) = lines.next() else { return };
    let fleet: Fleet = serde_json::from_str(&first).unwrap();
    let mut devices: Vec<Device> = (0..fleet.boxes).map(|number| Device::new(number, &fleet)).collect();
    let mut due: BinaryHeap<Reverse<(u64, usize)>> =
        devices.iter().enumerate().map(|(index, device)| Reverse((device.next_ms(), index))).collect();
    let mut published: Option<Published> = None;
    let mut out = std::io::stdout().lock();
    for line in lines {
        let step: Step<'_> = serde_json::from_str(&line).unwrap();
        if let Some(text) = step.manifest {
            let number = published.as_ref().map_or(1, |published| published.number + 1);
            published = Some(Published::new(number, RolloutManifest::parse(text.get().as_bytes()).unwrap()));
        }
        let reports = advance(&mut devices, &mut due, step.now_ms, published.as_ref());
        writeln!(out, "{}", json!({ "reports": reports })).unwrap();
        out.flush().unwrap();
    }
}

/// Runs all events up to a moment, in the order of time.
fn advance(
    devices: &mut [Device],
    due: &mut BinaryHeap<Reverse<(u64, usize)>>,
    now_ms: u64,
    published: Option<&Published>,
) -> Vec<Value> {
    let mut changed = Vec::new();
    while let Some(Reverse((at_ms, index))) = due.peek().copied().filter(|Reverse((at_ms, _))| *at_ms <= now_ms) {
        due.pop();
        let device = devices.get_mut(index).unwrap();
        if device.happen(at_ms, published) {
            changed.push(index);
        }
        due.push(Reverse((device.next_ms(), index)));
    }
    changed.sort_unstable();
    changed.dedup();
    changed.into_iter().map(|index| devices.get(index).unwrap().heard(now_ms)).collect()
}
