//! The cores that models run on: the machine's topology, the daemon's one budget of cores, and pinning threads to them.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use ledge_base::telemetry::system::CgroupLimits;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// The kinds of cores of a hybrid CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CpuCoreKind {
    /// A fast core, or any core of a CPU with equal cores.
    Performance,
    /// A slow core that saves power.
    Efficiency,
}

/// A logical core that this process may run on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CpuCore {
    /// Its number in the system, as in `taskset -c`.
    pub cpu: usize,
    /// The lowest-numbered logical core of the same physical core.
    pub physical: usize,
    pub node: usize,
    pub kind: CpuCoreKind,
}

/// The logical cores that this process may run on, ascending.
#[derive(Debug, Clone, PartialEq)]
pub struct CpuTopology {
    pub cores: Vec<CpuCore>,
    /// The CPU time that the control groups allow, in cores; `None` is no limit.
    pub quota: Option<f64>,
}

impl CpuTopology {
    /// Reads the machine's topology, this process's affinity mask and its quota.
    pub fn read() -> Self {
        let root = Path::new("/");
        Self::of(root, &allowed(), CgroupLimits::read(root).cpus)
    }

    /// Reads the topology of the cores in `allowed` from `root`/sys (`/` except in tests). Without an entry there, a
    /// core is a physical one, on node 0, and fast.
    pub fn of(root: &Path, allowed: &[usize], quota: Option<f64>) -> Self {
        let devices = root.join("sys/devices");
        let list = |path: &Path| fs::read_to_string(path).ok().map(|text| parse_list(&text)).unwrap_or_default();
        // Intel lists the slow cores of a hybrid CPU here; on ARM the slow ones have a lower capacity.
        let atoms: BTreeSet<usize> = list(&devices.join("cpu_atom/cpus")).into_iter().collect();
        let cpu_folder = |cpu: usize| devices.join(format!("system/cpu/cpu{cpu}"));
        let capacity = |cpu| fs::read_to_string(cpu_folder(cpu).join("cpu_capacity")).ok()?.trim().parse::<u64>().ok();
        let fastest = allowed.iter().filter_map(|&cpu| capacity(cpu)).max();
        let nodes: Vec<(usize, Vec<usize>)> = list(&devices.join("system/node/has_cpu"))
            .into_iter()
            .map(|node| (node, list(&devices.join(format!("system/node/node{node}/cpulist")))))
            .collect();

        let core = |cpu: usize| {
            let siblings = list(&cpu_folder(cpu).join("topology/thread_siblings_list"));
            // Slow is less than three quarters of the fastest: fast cores of one chip differ by a few per cent.
            let is_below = |(own, fastest): (u64, u64)| own.saturating_mul(4) < fastest.saturating_mul(3);
            let slow = atoms.contains(&cpu) || capacity(cpu).zip(fastest).is_some_and(is_below);
            CpuCore {
                cpu,
                physical: siblings.into_iter().min().unwrap_or(cpu),
                node: nodes.iter().find(|(_, cpus)| cpus.contains(&cpu)).map_or(0, |(node, _)| *node),
                kind: if slow { CpuCoreKind::Efficiency } else { CpuCoreKind::Performance },
            }
        };

        let mut cores: Vec<CpuCore> = allowed.iter().map(|&cpu| core(cpu)).collect();
        cores.sort_unstable_by_key(|core| core.cpu);
        Self { cores, quota }
    }

    /// The number of physical cores.
    pub fn physical_cores(&self) -> usize {
        self.cores.iter().map(|core| core.physical).collect::<BTreeSet<_>>().len()
    }

    /// The logical cores that models run on.
    ///
    /// `wanted` is their number. 0 means one logical core for each physical one, because arithmetic gains nothing from
    /// the second thread of a core, and no more than the quota allows, because a throttled thread stops in the middle
    /// of a run. Fast cores come first, then slow ones, then second threads. Within these, cores come node by node, so
    /// that a small budget stays on one node.
    pub fn budget(&self, wanted: usize) -> Vec<usize> {
        let mut order = self.cores.clone();
        order.sort_by_key(|core| (core.cpu != core.physical_first(&self.cores), core.kind, core.node, core.cpu));
        let count =
            if wanted > 0 { wanted } else { self.physical_cores().min(self.quota.map_or(usize::MAX, round_up)) };
        order.truncate(count.max(1));
        order.into_iter().map(|core| core.cpu).collect()
    }
}

impl CpuCore {
    /// The first logical core of the same physical core among those allowed.
    fn physical_first(self, cores: &[Self]) -> usize {
        let siblings = cores.iter().filter(|core| core.physical == self.physical);
        siblings.map(|core| core.cpu).min().unwrap_or(self.cpu)
    }
}

/// Rounds up: a quota of 1.5 cores is enough for two threads that are busy three quarters of the time.
fn round_up(cores: f64) -> usize {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "cores are few and positive")]
    let count = cores.ceil().clamp(1.0, 1024.0) as usize;
    count
}

/// The logical cores in this thread's affinity mask, ascending. If the system does not report it, all cores.
pub fn allowed() -> Vec<usize> {
    let set = sched_getaffinity(None).ok();
    let cpus = |set: CpuSet| (0..CpuSet::MAX_CPU).filter(|&cpu| set.is_set(cpu)).collect::<Vec<_>>();
    let cpus = set.map(cpus).unwrap_or_default();
    if cpus.is_empty() { (0..ledge_base::telemetry::process::usable_cores()).collect() } else { cpus }
}

/// Restricts the calling thread, and the threads that it starts, to `cpus`. The caller logs an error once, and models
/// run without pinning.
pub fn pin(cpus: &[usize]) -> std::io::Result<()> {
    let mut set = CpuSet::new();
    for &cpu in cpus.iter().filter(|&&cpu| cpu < CpuSet::MAX_CPU) {
        set.set(cpu);
    }
    Ok(sched_setaffinity(None, &set)?)
}

/// Parses a list of numbers as the kernel writes it: `0-3,8,10-11`. Parts that are not numbers are ignored.
pub fn parse_list(text: &str) -> Vec<usize> {
    let mut numbers = Vec::new();
    for part in text.trim().split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        if let (Ok(first), Ok(last)) = (first.parse::<usize>(), last.parse::<usize>()) {
            numbers.extend(first..=last.min(first.saturating_add(CpuSet::MAX_CPU)));
        }
    }
    numbers
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A machine with the given files in `/sys`.
    fn machine(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join("sys/devices").join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            ledge_base::durable::replace(&path, text.as_bytes()).unwrap();
        }
        root
    }

    fn siblings(pairs: &[(usize, &'static str)]) -> Vec<(String, &'static str)> {
        pairs.iter().map(|(cpu, list)| (format!("system/cpu/cpu{cpu}/topology/thread_siblings_list"), *list)).collect()
    }

    fn topology(files: &[(String, &str)], cpus: usize, quota: Option<f64>) -> CpuTopology {
        let files: Vec<(&str, &str)> = files.iter().map(|(path, text)| (path.as_str(), *text)).collect();
        CpuTopology::of(machine(&files).path(), &(0..cpus).collect::<Vec<_>>(), quota)
    }

    #[test]
    fn a_second_thread_of_a_core_is_used_only_when_asked_for() {
        let files = siblings(&[(0, "0,2"), (1, "1,3"), (2, "0,2"), (3, "1,3")]);
        let topology = topology(&files, 4, None);
        assert_eq!(topology.physical_cores(), 2);
        assert_eq!(topology.budget(0), [0, 1]);
        assert_eq!(topology.budget(3), [0, 1, 2]);
        assert_eq!(topology.budget(9), [0, 1, 2, 3]);
    }

    #[test]
    fn fast_cores_come_first_and_a_quota_bounds_them() {
        let mut files = siblings(&[(0, "0-1"), (1, "0-1"), (2, "2"), (3, "3")]);
        files.push(("cpu_atom/cpus".into(), "2-3"));
        let hybrid = topology(&files, 4, None);
        assert_eq!(hybrid.cores.iter().filter(|core| core.kind == CpuCoreKind::Efficiency).count(), 2);
        assert_eq!(hybrid.budget(0), [0, 2, 3]);
        let limited = CpuTopology { quota: Some(1.5), ..hybrid };
        assert_eq!(limited.budget(0), [0, 2]);
        assert_eq!(CpuTopology { quota: Some(0.2), ..limited }.budget(0), [0]);
    }

    #[test]
    fn big_and_little_cores_are_told_apart_by_capacity() {
        let files: Vec<_> = [(0, "1024"), (1, "980"), (2, "446")]
            .map(|(cpu, c)| (format!("system/cpu/cpu{cpu}/cpu_capacity"), c))
            .into();
        let kinds: Vec<_> = topology(&files, 3, None).cores.iter().map(|core| core.kind).collect();
        assert_eq!(kinds, [CpuCoreKind::Performance, CpuCoreKind::Performance, CpuCoreKind::Efficiency]);
    }

    #[test]
    fn a_small_budget_stays_on_one_node() {
        let mut files = siblings(&[(0, "0"), (1, "1"), (2, "2"), (3, "3")]);
        files.extend([
            ("system/node/has_cpu".to_owned(), "0-1"),
            ("system/node/node0/cpulist".to_owned(), "0,2"),
            ("system/node/node1/cpulist".to_owned(), "1,3"),
        ]);
        assert_eq!(topology(&files, 4, None).budget(2), [0, 2]);
    }

    #[test]
    fn a_machine_that_tells_nothing_has_equal_cores() {
        let topology = topology(&[], 3, None);
        assert_eq!(topology.budget(0), [0, 1, 2]);
        assert!(!CpuTopology::read().cores.is_empty());
    }

    #[test]
    fn a_pinned_thread_and_its_children_stay_where_they_are_put() {
        let cpu = *allowed().last().unwrap();
        let seen = std::thread::spawn(move || {
            pin(&[cpu]).unwrap();
            std::thread::spawn(allowed).join().unwrap()
        });
        assert_eq!(seen.join().unwrap(), [cpu]);
    }

    #[test]
    fn a_kernel_list_is_read_whatever_is_in_it() {
        assert_eq!(parse_list("0-3,8\n"), [0, 1, 2, 3, 8]);
        assert_eq!(parse_list(""), [0_usize; 0]);
        assert_eq!(parse_list("x,5,7-"), [5]);
    }
}
