//! Compares this box with the requirements of a release. Pure, except for reading the machine.

use ledge_base::telemetry::system::{CgroupLimits, MachineMemory};
use ledge_engine::Runtimes;
use ledge_engine::backend::Runtime;

use crate::package::Requirements;
use crate::state::{RollbackCause, RollbackReason};

/// The properties of a box that a release may require.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostCapabilities {
    pub ledge: String,
    /// The architecture, as Rust and the kernel name it.
    pub architecture: String,
    /// The runtimes with an installed library.
    pub runtimes: Vec<String>,
    /// The memory of the machine, or of this process's control group when that is less.
    pub memory_bytes: u64,
}

impl HostCapabilities {
    /// Reads the properties of this machine.
    pub fn gather(runtimes: &Runtimes) -> Self {
        let there = |runtime: &Runtime| runtimes.library(*runtime).is_ok();
        Self {
            ledge: env!("CARGO_PKG_VERSION").to_owned(),
            architecture: std::env::consts::ARCH.to_owned(),
            runtimes: Runtime::ALL.into_iter().filter(there).map(|runtime| runtime.as_str().to_owned()).collect(),
            memory_bytes: memory_bytes(),
        }
    }
}

fn memory_bytes() -> u64 {
    let machine = MachineMemory::read().map(|memory| memory.total_bytes);
    let group = CgroupLimits::read(std::path::Path::new("/")).memory_bytes;
    machine.into_iter().chain(group).min().unwrap_or(u64::MAX)
}

/// Checks that a box with these properties meets the requirements of the release.
pub fn check(requires: &Requirements, facts: &HostCapabilities) -> Result<(), RollbackReason> {
    let lacking = |detail: String| Err(RollbackReason::new(RollbackCause::Requirements, detail));
    if let Some(needed) = &requires.ledge {
        match (numbers(&facts.ledge), numbers(needed)) {
            (Some(own), Some(least)) if own >= least => {}
            (_, Some(_)) => return lacking(format!("needs Ledge {needed} or newer, this is {}", facts.ledge)),
            (_, None) => return lacking(format!("needs Ledge {needed:?}, which is not a version such as 0.1.0")),
        }
    }
    if !is_among(&requires.architectures, std::slice::from_ref(&facts.architecture)) {
        let wanted = requires.architectures.join(", ");
        return lacking(format!("is made for {wanted}, this machine is {}", facts.architecture));
    }
    if !is_among(&requires.runtimes, &facts.runtimes) {
        let there = if facts.runtimes.is_empty() { "none".to_owned() } else { facts.runtimes.join(", ") };
        return lacking(format!("needs the runtime {}, this box has {there}", requires.runtimes.join(" or ")));
    }
    let (needed, there) = (requires.memory_mb.unwrap_or(0), facts.memory_bytes >> 20);
    if needed > there {
        return lacking(format!("needs {needed} MiB of memory, this machine has {there}"));
    }
    Ok(())
}

/// Returns true if one of `wanted` is in `there`; true when none is wanted.
fn is_among(wanted: &[String], there: &[String]) -> bool {
    wanted.is_empty() || wanted.iter().any(|wanted| there.contains(wanted))
}

/// Parses `1.2.3` to numbers that compare. A suffix after `-` or `+` does not count.
fn numbers(version: &str) -> Option<Vec<u64>> {
    let release = version.split(['-', '+']).next()?;
    let mut numbers = release.split('.').map(|part| part.parse().ok()).collect::<Option<Vec<u64>>>()?;
    // 1.2 and 1.2.0 are the same.
    while numbers.last() == Some(&0) {
        numbers.pop();
    }
    Some(numbers)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts() -> HostCapabilities {
        HostCapabilities {
            ledge: "0.9.1".into(),
            architecture: "x86_64".into(),
            runtimes: vec!["onnxruntime".into()],
            memory_bytes: 2 << 30,
        }
    }

    fn texts(texts: &[&str]) -> Vec<String> {
        texts.iter().copied().map(str::to_owned).collect()
    }

    #[test]
    fn a_release_that_asks_for_nothing_runs_anywhere() {
        let nowhere = HostCapabilities { ledge: String::new(), runtimes: Vec::new(), memory_bytes: 0, ..facts() };
        assert_eq!(check(&Requirements::default(), &nowhere), Ok(()));
    }

    #[test]
    fn what_this_box_lacks_is_told_with_what_it_has() {
        let none = Requirements::default;
        for (requires, words) in [
            (Requirements { ledge: Some("0.10.0".into()), ..none() }, "needs Ledge 0.10.0 or newer, this is 0.9.1"),
            (Requirements { ledge: Some("new".into()), ..none() }, "\"new\", which is not a version"),
            (Requirements { architectures: texts(&["aarch64"]), ..none() }, "for aarch64, this machine is x86_64"),
            (
                Requirements { runtimes: texts(&["openvino"]), ..none() },
                "needs the runtime openvino, this box has onnxruntime",
            ),
            (Requirements { memory_mb: Some(2049), ..none() }, "needs 2049 MiB of memory, this machine has 2048"),
        ] {
            let reason = check(&requires, &facts()).unwrap_err();
            assert!(reason.cause == RollbackCause::Requirements && reason.detail.contains(words), "{reason}");
        }
    }

    #[test]
    fn what_is_just_enough_is_enough() {
        let requires = Requirements {
            ledge: Some("0.9".into()),
            runtimes: texts(&["openvino", "onnxruntime"]),
            architectures: texts(&["aarch64", "x86_64"]),
            memory_mb: Some(2048),
        };
        assert_eq!(check(&requires, &facts()), Ok(()));
        assert!(numbers("0.10.0") > numbers("0.9.99"));
        assert_eq!(numbers("1.2.0-rc.1"), numbers("1.2"));
    }

    #[test]
    fn this_machine_has_memory_and_a_version() {
        let facts = HostCapabilities::gather(&Runtimes::new("/no/such/folder".into()));
        assert!(facts.memory_bytes > 64 << 20 && facts.runtimes.is_empty(), "{facts:?}");
        let own = Requirements { ledge: Some(facts.ledge.clone()), ..Requirements::default() };
        assert_eq!(check(&own, &facts), Ok(()));
    }
}
