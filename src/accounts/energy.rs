//! The energy of the service: measured by RAPL where this process may read it, else estimated from its CPU time.
//!
//! The processor measures all that it runs. The service's part is its share of the busy CPU time of the machine.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The folder of RAPL. Its packages are `intel-rapl:0` and so on; `intel-rapl:0:0` is a part of one.
const FOLDER: &str = "/sys/class/powercap";

/// The most packages that are read.
const PACKAGES_MAX: usize = 16;

/// The energy of the service in an interval.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IntervalEnergy {
    pub microjoules: u64,
    pub is_estimated: bool,
}

/// One processor package.
#[derive(Debug)]
struct RaplPackage {
    file: PathBuf,
    /// The counter begins at 0 again after this value.
    range_uj: u64,
    before_uj: u64,
}

/// Reads the energy of intervals.
#[derive(Debug)]
pub struct EnergyMeter {
    packages: Vec<RaplPackage>,
    stat: PathBuf,
    /// The busy time of the machine, in ticks.
    busy_before: Option<u64>,
    tick: Duration,
    /// Of one busy core, in microwatts, where nothing is measured.
    microwatts_a_core: u64,
}

impl EnergyMeter {
    /// Opens the counters of this machine.
    pub fn open(microwatts_a_core: u64) -> Self {
        Self::with_files(Path::new(FOLDER), Path::new("/proc/stat"), microwatts_a_core)
    }

    fn with_files(rapl: &Path, stat: &Path, microwatts_a_core: u64) -> Self {
        let entries = fs::read_dir(rapl).into_iter().flatten().flatten();
        let is_package =
            |name: &str| name.strip_prefix("intel-rapl:").is_some_and(|number| number.parse::<u16>().is_ok());
        let folders = entries.filter(|entry| entry.file_name().to_str().is_some_and(is_package));
        let open = |folder: PathBuf| {
            let file = folder.join("energy_uj");
            Some(RaplPackage {
                range_uj: number(&folder.join("max_energy_range_uj"))?,
                before_uj: number(&file)?,
                file,
            })
        };
        let packages = folders.filter_map(|entry| open(entry.path())).take(PACKAGES_MAX).collect();
        let tick =
            Duration::from_secs(1) / u32::try_from(rustix::param::clock_ticks_per_second()).unwrap_or(100).max(1);
        Self { packages, stat: stat.to_owned(), busy_before: busy_ticks(stat), tick, microwatts_a_core }
    }

    /// The energy of the interval since the last call, in which the service used `cpu`.
    pub fn end_interval(&mut self, cpu: Duration) -> IntervalEnergy {
        self.measured(cpu).map_or_else(
            || {
                let microjoules = cpu.as_nanos() * u128::from(self.microwatts_a_core) / 1_000_000_000;
                IntervalEnergy { microjoules: u64::try_from(microjoules).unwrap_or(u64::MAX), is_estimated: true }
            },
            |microjoules| IntervalEnergy { microjoules, is_estimated: false },
        )
    }

    fn measured(&mut self, cpu: Duration) -> Option<u64> {
        if self.packages.is_empty() {
            return None;
        }
        let energy: Option<u64> = self.packages.iter_mut().map(RaplPackage::used_uj).sum();
        let now = busy_ticks(&self.stat);
        let busy =
            now.zip(std::mem::replace(&mut self.busy_before, now)).map(|(now, before)| now.saturating_sub(before));
        let busy = self.tick.saturating_mul(u32::try_from(busy?).ok()?).max(cpu);
        let share = (u128::from(energy?) * cpu.as_nanos()).checked_div(busy.as_nanos()).unwrap_or(0);
        u64::try_from(share).ok()
    }
}

impl RaplPackage {
    fn used_uj(&mut self) -> Option<u64> {
        let now_uj = number(&self.file)?;
        let before_uj = std::mem::replace(&mut self.before_uj, now_uj);
        Some(
            now_uj
                .checked_sub(before_uj)
                .unwrap_or_else(|| self.range_uj.saturating_sub(before_uj).saturating_add(now_uj)),
        )
    }
}

fn number(file: &Path) -> Option<u64> {
    fs::read_to_string(file).ok()?.trim().parse().ok()
}

/// The ticks in which a core of the machine was busy: the fields user, nice, system, irq, softirq and steal of the first
/// line of `/proc/stat` (`proc_stat(5)`).
fn busy_ticks(stat: &Path) -> Option<u64> {
    let text = fs::read_to_string(stat).ok()?;
    let fields: Vec<u64> =
        text.lines().next()?.split_whitespace().skip(1).map_while(|field| field.parse().ok()).collect();
    let [user, nice, system, _idle, _iowait, irq, softirq, steal, ..] = *fields.as_slice() else { return None };
    [user, nice, system, irq, softirq, steal].into_iter().try_fold(0_u64, u64::checked_add)
}

#[cfg(test)]
mod tests {
    use ledge_base::durable;

    use super::*;

    #[test]
    fn without_counters_busy_cores_have_the_stated_power() {
        let folder = tempfile::tempdir().unwrap();
        let mut meter = EnergyMeter::with_files(&folder.path().join("none"), &folder.path().join("stat"), 8_000_000);
        let energy = meter.end_interval(Duration::from_millis(2500));
        assert_eq!(energy, IntervalEnergy { microjoules: 20_000_000, is_estimated: true });
    }

    #[test]
    fn the_service_has_its_share_of_all_packages_also_when_a_counter_begins_again() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            durable::replace_in_new_folder(&folder.path().join(name), text.as_bytes()).unwrap();
        };
        let ticks = rustix::param::clock_ticks_per_second();
        let stat = |seconds: u64| write("stat", &format!("cpu  {} 0 0 999 5 0 0 0 0 0\ncpu0 1\n", seconds * ticks));
        for (package, at) in [("0", "900"), ("1", "50")] {
            write(&format!("intel-rapl:{package}/max_energy_range_uj"), "1000\n");
            write(&format!("intel-rapl:{package}/energy_uj"), at);
        }
        write("intel-rapl:0:0/energy_uj", "7");
        stat(10);
        let mut meter = EnergyMeter::with_files(folder.path(), &folder.path().join("stat"), 8_000_000);
        write("intel-rapl:0/energy_uj", "100\n");
        write("intel-rapl:1/energy_uj", "250\n");
        stat(14);
        // 200 around the end of the range and 200, of which one of four busy seconds was the service's.
        let energy = meter.end_interval(Duration::from_secs(1));
        assert_eq!(energy, IntervalEnergy { microjoules: 100, is_estimated: false });
    }
}
