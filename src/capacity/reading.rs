//! The counters of the box at one moment, and where they come from.

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use ledge_base::names::ModelName;
use ledge_base::telemetry::service_usage;
use ledge_base::telemetry::system::{CgroupLimits, DiskSpace, MachineMemory, StoreFolder};
use ledge_engine::cores;
use ledge_models::serving::Serving;
use tokio::runtime::Handle;

use crate::headroom::{Resource, Used};
use crate::history::{Counts, WorkCount};
use crate::whole;

/// The kind of work of all cameras together. The kinds of models are [`of_model`].
pub const CAMERAS: &str = "cameras";

/// The name of the kind of work of a model.
pub fn of_model(name: &ModelName) -> String {
    format!("model/{name}")
}

/// The counters of one camera since the start.
#[derive(Debug, Clone, PartialEq)]
pub struct CameraReading {
    pub model: ModelName,
    /// Pictures that were fetched and compared.
    pub pictures: u64,
    /// Those that the model was asked about.
    pub looked: u64,
    /// Time of decoding and comparing.
    pub comparing: Duration,
}

/// The objective of a model.
type ModelObjective = dyn Fn(&ModelName) -> Option<Duration> + Send + Sync;

/// The parts whose counters are read.
#[derive(Clone)]
pub struct CapacitySources {
    pub serving: Serving,
    pub cameras: Arc<dyn Fn() -> Vec<CameraReading> + Send + Sync>,
    /// The time within which 99 of 100 calls of a model must be answered, where its owner has set one.
    pub objective: Arc<ModelObjective>,
    pub stores: Vec<StoreFolder>,
    /// `http.max_memory_bytes`, as far as calls may use it.
    pub request_memory_bytes: usize,
    /// `control.threads`.
    pub control_threads: usize,
}

impl fmt::Debug for CapacitySources {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CapacitySources").field("stores", &self.stores).finish_non_exhaustive()
    }
}

/// The time of the threads that serve callers since the start, in seconds, and how often they slept.
pub fn control_usage() -> (f64, f64) {
    let metrics = Handle::current().metrics();
    let of =
        |worker| (metrics.worker_total_busy_duration(worker).as_secs_f64(), whole(metrics.worker_park_count(worker)));
    (0..metrics.num_workers()).map(of).fold((0.0, 0.0), |sum, next| (sum.0 + next.0, sum.1 + next.1))
}

/// The time that these cores were busy since the start of the machine, and the part of it at low priority, in seconds:
/// the lines `cpuN user nice system idle iowait irq softirq steal ...` of `/proc/stat` (proc(5)), in ticks. Time that a
/// hypervisor took is busy time.
fn busy_time(stat: &str, cores: &[usize], ticks_per_second: u64) -> (f64, f64) {
    let of_core = |line: &str| {
        let mut fields = line.strip_prefix("cpu")?.split_ascii_whitespace();
        let core = fields.next()?.parse::<usize>().ok().filter(|core| cores.contains(core))?;
        let ticks: Vec<u64> = fields.map_while(|field| field.parse().ok()).collect();
        let field = |index: usize| whole(ticks.get(index).copied().unwrap_or(0));
        let busy = [0, 1, 2, 5, 6, 7].map(field).iter().sum::<f64>();
        Some((core, busy, field(1)))
    };
    let sum = stat.lines().filter_map(of_core).fold((0.0, 0.0), |sum, (_, busy, nice)| (sum.0 + busy, sum.1 + nice));
    let ticks_per_second = whole(ticks_per_second.max(1));
    (sum.0 / ticks_per_second, sum.1 / ticks_per_second)
}

impl CapacitySources {
    /// Reads the counters. It reads files of `/proc`, so it is not for an async thread.
    pub fn counts(&self, (control_s, wakes): (f64, f64)) -> Counts {
        let mut counts = Counts { control_s, wakes, ..Counts::default() };
        for model in self.serving.repository().all_live() {
            let counters = model.statistics.snapshot();
            let count = counts.kinds.entry(of_model(&model.name)).or_default();
            count.units += whole(
                counters.success.count + counters.fail.count - counters.refusals.queue_full.min(counters.fail.count),
            );
            count.run_s += (counters.cpu + counters.prepare_cpu).as_secs_f64();
            count.clock_s += counters.success.time.saturating_sub(counters.queue.time).as_secs_f64();
        }
        let cameras = (self.cameras)();
        if !cameras.is_empty() {
            let of = |camera: &CameraReading| (whole(camera.pictures), camera.comparing.as_secs_f64());
            let (units, run_s) = cameras.iter().map(of).fold((0.0, 0.0), |sum, next| (sum.0 + next.0, sum.1 + next.1));
            counts.kinds.insert(CAMERAS.to_owned(), WorkCount { units, run_s, clock_s: run_s });
        }
        counts.service_s = service_usage::cpu_time().map_or(0.0, |cpu| cpu.as_secs_f64());
        let allowed = cores::allowed();
        let stat = std::fs::read_to_string("/proc/stat").unwrap_or_default();
        (counts.busy_s, counts.nice_s) = busy_time(&stat, &allowed, rustix::param::clock_ticks_per_second());
        counts
    }

    /// The resources besides time. It may take tens of milliseconds.
    pub fn spaces(&self) -> Vec<Used> {
        let mut spaces = Vec::new();
        let memory = MachineMemory::read().zip(service_usage::usage());
        if let Some((memory, usage)) = memory {
            let limit = memory.most_within(&CgroupLimits::read(Path::new("/")));
            let free = memory.available_bytes.min(limit.saturating_sub(usage.memory_bytes));
            // Instances that calls may still load.
            let more = |model: &Arc<ledge_models::repository::LoadedModel>| {
                let usage = model.instance_usage();
                let instances = if model.is_chain() { 0 } else { model.scale().max.saturating_sub(usage.instances) };
                usage.bytes_each.saturating_mul(instances as u64)
            };
            let more: u64 = self.serving.repository().all_live().iter().map(more).sum();
            let used = whole(usage.memory_bytes.saturating_add(more));
            spaces.push(Used { resource: Resource::Memory, used, most: whole(usage.memory_bytes + free) });
        }
        spaces.push(Used {
            resource: Resource::RequestMemory,
            used: whole(self.serving.memory().used() as u64),
            most: whole(self.request_memory_bytes as u64),
        });
        let disk = |store: &StoreFolder| {
            let space = DiskSpace::under(&store.folder).ok()?;
            let used = whole(space.total_bytes.saturating_sub(space.available_bytes));
            let most = whole(space.total_bytes.saturating_sub(store.reserve_bytes));
            Some(Used { resource: Resource::Disk, used, most })
        };
        spaces.extend(self.stores.iter().filter_map(disk).max_by(|a, b| a.ratio().total_cmp(&b.ratio())));
        spaces
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_of_the_own_cores_is_busy_without_idle_and_waiting_for_disks() {
        let stat = "cpu  9 9 9 9\ncpu0 100 50 30 1000 500 10 5 5 7 7\ncpu1 900 0 0 0\ncpu7 100 0 0 9\nintr 1\n";
        assert_eq!(busy_time(stat, &[0, 7], 100), (3.0, 0.5));
        assert_eq!(busy_time("cpu0 x\ncpu", &[0], 0), (0.0, 0.0));
    }
}
