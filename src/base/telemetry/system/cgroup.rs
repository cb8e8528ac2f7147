//! The limits that control groups set on this process, as with systemd's `CPUQuota=` and `MemoryMax=`, and in
//! containers.

use std::fs;
use std::path::{Component, Path, PathBuf};

use serde::Serialize;

/// The tightest limits of the control groups (version 2) around this process.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct CgroupLimits {
    /// The number of cores that may be used; `None` is no limit.
    pub cpus: Option<f64>,
    /// The memory limit in bytes; `None` is no limit.
    pub memory_bytes: Option<u64>,
    /// The limit of swap besides the memory, in bytes; `None` is no limit.
    #[serde(skip)]
    pub swap_bytes: Option<u64>,
}

impl CgroupLimits {
    /// Reads the limits of this process's group and of every group above it: all of them apply.
    ///
    /// `root` is the parent of `proc` and of the mount points: `/`, except in tests. Without control groups there are
    /// no limits.
    pub fn read(root: &Path) -> Self {
        let mut limits = Self::default();
        for group in groups(root).unwrap_or_default() {
            let read = |file: &str| fs::read_to_string(group.join(file)).ok();
            let bytes = |file: &str| read(file)?.trim().parse().ok();
            limits.cpus = limits.cpus.into_iter().chain(read("cpu.max").and_then(|text| cpus(&text))).reduce(f64::min);
            limits.memory_bytes = limits.memory_bytes.into_iter().chain(bytes("memory.max")).min();
            limits.swap_bytes = limits.swap_bytes.into_iter().chain(bytes("memory.swap.max")).min();
        }
        limits
    }
}

/// The folders of this process's group and of the groups above it, as far as they are visible.
fn groups(root: &Path) -> Option<Vec<PathBuf>> {
    let own = fs::read_to_string(root.join("proc/self/cgroup")).ok()?;
    let own = PathBuf::from(own.lines().find_map(|line| line.strip_prefix("0::"))?);
    let mounts = fs::read_to_string(root.join("proc/self/mountinfo")).ok()?;
    let (shown, mount_point) = mounts.lines().find_map(cgroup2_mount)?;
    // In a container the mount may show only a part of the tree, and the path of the own group may lead out of it.
    let below = own.strip_prefix(shown).unwrap_or(Path::new(""));
    let inside = below.components().all(|component| matches!(component, Component::Normal(_)));
    let below = if inside { below } else { Path::new("") };
    let top = root.join(mount_point.trim_start_matches('/'));
    Some(below.ancestors().map(|group| top.join(group)).collect())
}

/// The visible part of the tree and its mount point: fields 4 and 5 of a line of `mountinfo` (proc(5)).
fn cgroup2_mount(line: &str) -> Option<(&str, &str)> {
    let (mount, file_system) = line.split_once(" - ")?;
    let mut fields = mount.split(' ').skip(3);
    file_system.starts_with("cgroup2 ").then_some((fields.next()?, fields.next()?))
}

/// Parses `cpu.max`, a quota and a period in microseconds: `150000 100000`, or `max 100000`.
fn cpus(text: &str) -> Option<f64> {
    let (quota, period) = text.trim().split_once(' ')?;
    let (quota, period) = (quota.parse::<f64>().ok()?, period.parse::<f64>().ok()?);
    (quota > 0.0 && period > 0.0 && quota.is_finite()).then_some(quota / period)
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "nobody minds half a file here")]
mod tests {
    use super::*;

    fn check(files: &[(&str, &str)], cpus: Option<f64>, memory_bytes: Option<u64>) {
        let root = tempfile::tempdir().unwrap();
        for (path, content) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        }
        let found = CgroupLimits::read(root.path());
        assert_eq!((found.cpus, found.memory_bytes), (cpus, memory_bytes));
    }

    #[test]
    fn the_tightest_limit_of_swap_binds() {
        let root = tempfile::tempdir().unwrap();
        let group = "sys/fs/cgroup/a/memory.swap.max";
        for (path, content) in [MOUNT, ("proc/self/cgroup", "0::/a\n"), (group, "0\n")] {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        }
        assert_eq!(CgroupLimits::read(root.path()).swap_bytes, Some(0));
        fs::write(root.path().join(group), "max\n").unwrap();
        assert_eq!(CgroupLimits::read(root.path()).swap_bytes, None);
    }

    const MOUNT: (&str, &str) = (
        "proc/self/mountinfo",
        "1 2 0:1 / /sys rw - sysfs sysfs rw\n41 31 0:38 / /sys/fs/cgroup rw,relatime shared:9 - cgroup2 cgroup2 rw\n",
    );

    #[test]
    fn the_tightest_limit_up_the_tree_binds() {
        check(
            &[
                MOUNT,
                ("proc/self/cgroup", "0::/system.slice/ledge.service\n"),
                ("sys/fs/cgroup/system.slice/ledge.service/cpu.max", "150000 100000\n"),
                ("sys/fs/cgroup/system.slice/ledge.service/memory.max", "max\n"),
                ("sys/fs/cgroup/system.slice/cpu.max", "400000 100000\n"),
                ("sys/fs/cgroup/system.slice/memory.max", "1073741824\n"),
                ("sys/fs/cgroup/other.slice/memory.max", "1\n"),
            ],
            Some(1.5),
            Some(1 << 30),
        );
    }

    #[test]
    fn max_is_no_limit() {
        let files = [MOUNT, ("proc/self/cgroup", "1:cpu:/x\n0::/a\n"), ("sys/fs/cgroup/a/cpu.max", "max 100000\n")];
        check(&files, None, None);
    }

    #[test]
    fn a_container_that_sees_a_part_of_the_tree_finds_its_limit_there() {
        let limit = ("sys/fs/cgroup/cpu.max", "50000 100000\n");
        check(&[MOUNT, ("proc/self/cgroup", "0::/../../outside\n"), limit], Some(0.5), None);
        let part = ("proc/self/mountinfo", "1 2 0:1 /docker/x /sys/fs/cgroup rw - cgroup2 cgroup rw\n");
        check(&[part, ("proc/self/cgroup", "0::/docker/x\n"), limit], Some(0.5), None);
    }

    #[test]
    fn no_control_groups_and_nonsense_are_no_limits() {
        check(&[], None, None);
        check(&[("proc/self/cgroup", "\n"), ("proc/self/mountinfo", " - \n")], None, None);
        for nonsense in ["", "x y", "nan 1", "1 0", "-1 100000", "inf 1"] {
            check(&[MOUNT, ("proc/self/cgroup", "0::/\n"), ("sys/fs/cgroup/cpu.max", nonsense)], None, None);
        }
    }
}
