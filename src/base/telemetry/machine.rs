//! The load and frequency of the machine's cores, and its temperatures. They are read only on request.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use sysinfo::{Components, CpuRefreshKind, MINIMUM_CPU_UPDATE_INTERVAL, System};

/// The condition of the machine.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct MachineUsage {
    /// The logical cores.
    pub cores: Vec<CoreUsage>,
    /// Temperatures in degrees Celsius by sensor; none in most virtual machines.
    pub temperatures: BTreeMap<String, f64>,
}

/// One core.
#[derive(Debug, Clone, PartialEq)]
pub struct CoreUsage {
    pub core: String,
    /// The share of time that it was busy since the previous reading, 0 to 1; `None` without a reading long enough ago.
    pub load: Option<f64>,
    /// Its current frequency in hertz; `None` if the system does not report it.
    pub frequency_hz: Option<u64>,
}

/// Reads the machine's values, and remembers the last reading: a load is the difference between two.
///
/// Within 200 ms of a reading the next one has the same loads: the system counts in steps of 10 ms. All callers share
/// the readings, so a load covers the time since the last call by any of them.
#[derive(Debug, Default)]
pub struct MachineMonitor {
    last: Mutex<Option<MachineMonitorState>>,
}

#[derive(Debug)]
struct MachineMonitorState {
    system: System,
    components: Option<Components>,
    /// The time of the first reading.
    first: Option<Instant>,
}

impl MachineMonitor {
    /// Reads the values. Some hardware sensors take milliseconds, so this is not for an async thread.
    pub fn read(&self) -> MachineUsage {
        // A panic under this lock would leave an older reading, which is still valid.
        let last = &mut *self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if last.is_none() {
            let components = Components::new().ok();
            *last = System::new().ok().map(|system| MachineMonitorState { system, components, first: None });
        }

        let Some(MachineMonitorState { system, components, first }) = last else { return MachineUsage::default() };
        let is_difference = first.is_some_and(|first| first.elapsed() >= MINIMUM_CPU_UPDATE_INTERVAL);
        system.refresh_cpu_specifics(CpuRefreshKind::nothing().with_usage().with_frequency());
        first.get_or_insert_with(Instant::now);
        let says_frequency = says_frequency(Path::new("/"));
        let cores = system.cpus().iter().map(|cpu| CoreUsage {
            core: cpu.name().trim_start_matches("cpu").to_owned(),
            load: is_difference.then(|| (f64::from(cpu.usage()) / 100.0).clamp(0.0, 1.0)),
            frequency_hz: Some(cpu.frequency()).filter(|mhz| says_frequency && *mhz > 0).map(|mhz| mhz * 1_000_000),
        });
        let cores = cores.collect();

        let temperatures = components.as_mut().map_or_else(BTreeMap::new, |components| {
            components.refresh(true);
            let mut listed: Vec<_> = components.iter().collect();
            listed.sort_by_key(|component| component.id());
            by_sensor(listed.into_iter().filter_map(|component| {
                let celsius = component.temperature().filter(|celsius| celsius.is_finite())?;
                Some((component.label().to_owned(), f64::from(celsius)))
            }))
        });
        MachineUsage { cores, temperatures }
    }
}

/// True if sysinfo's frequency is one. Without a frequency driver in the kernel, sysinfo takes the first number of
/// `/proc/cpuinfo` that looks like it, and on ARM that is `BogoMIPS`.
fn says_frequency(root: &Path) -> bool {
    cfg!(target_arch = "x86_64") || root.join("sys/devices/system/cpu/cpu0/cpufreq/scaling_cur_freq").exists()
}

/// Makes the names of sensors unique: two disks of a kind have one name, so those after the first get a number.
fn by_sensor(values: impl IntoIterator<Item = (String, f64)>) -> BTreeMap<String, f64> {
    let mut sensors = BTreeMap::new();
    for (name, celsius) in values {
        let mut unique = name.clone();
        for number in 2_u32.. {
            if !sensors.contains_key(&unique) {
                break;
            }
            unique = format!("{name} {number}");
        }
        sensors.insert(unique, celsius);
    }
    sensors
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_load_is_told_once_there_is_a_difference_to_tell() {
        let monitor = MachineMonitor::default();
        let first = monitor.read();
        assert!(!first.cores.is_empty() && first.cores.iter().all(|core| core.load.is_none()), "{first:?}");
        assert!(first.cores[0].core.parse::<u32>().is_ok());
        let later = loop {
            let usage = monitor.read();
            if usage.cores.iter().any(|core| core.load.is_some()) {
                break usage;
            }
        };
        let is_share = |core: &CoreUsage| core.load.is_some_and(|load| (0.0..=1.0).contains(&load));
        assert!(later.cores.iter().all(is_share), "{later:?}");
        // This test kept a core busy meanwhile.
        assert!(later.cores.iter().any(|core| core.load > Some(0.0)), "{later:?}");
    }

    #[test]
    fn sensors_of_one_name_are_told_apart() {
        let values = [("nvme", 40.0), ("coretemp", 50.0), ("nvme", 41.0), ("nvme", 42.0)];
        let sensors = by_sensor(values.map(|(name, celsius)| (name.to_owned(), celsius)));
        let expected = [("coretemp", 50.0), ("nvme", 40.0), ("nvme 2", 41.0), ("nvme 3", 42.0)];
        assert_eq!(sensors, BTreeMap::from(expected.map(|(name, celsius)| (name.to_owned(), celsius))));
    }

    #[test]
    fn a_system_without_a_frequency_driver_is_trusted_on_x86_alone() {
        let root = tempfile::tempdir().unwrap();
        assert_eq!(says_frequency(root.path()), cfg!(target_arch = "x86_64"));
        let driver = root.path().join("sys/devices/system/cpu/cpu0/cpufreq");
        std::fs::create_dir_all(&driver).unwrap();
        std::fs::File::create(driver.join("scaling_cur_freq")).unwrap();
        assert!(says_frequency(root.path()));
    }
}
