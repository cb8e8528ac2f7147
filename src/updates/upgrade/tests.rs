//! Upgrades with power cuts at each step: whatever happens, one of the two versions is installed whole at the end, and the
//! record says which.

use std::collections::BTreeSet;
use std::io;
use std::path::Path;
use std::time::Duration;

use ledge_base::durable;
use proptest::prelude::*;

use super::mirror;
use super::record::{ServiceFigures, StoredPackage, UpgradeFault, UpgradeJob, UpgradePhase, UpgradeRecord};
use super::steps::{PACKAGES_FOLDER, UpgradeMachine, begin, run};

/// What the new version does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NewVersion {
    Good,
    DoesNotInstall,
    DoesNotStart,
    LosesModel,
    EatsMemory,
    EndsByItself,
    BreaksAuditLog,
}

/// A machine whose power fails after a number of operations. A power cut is a panic, as `kill -9` ends a process.
struct TestMachine {
    installed: Option<String>,
    /// The version whose installation was interrupted.
    half: Option<String>,
    does: NewVersion,
    clock_ms: u64,
    program: bool,
    power: Option<u32>,
    installs: u32,
}

impl TestMachine {
    fn tick(&mut self) {
        match &mut self.power {
            Some(0) => {
                self.power = None;
                std::panic::panic_any("power cut");
            }
            Some(left) => *left -= 1,
            None => {}
        }
    }

    fn runs_new(&self) -> bool {
        self.installed.as_deref() == Some("2")
    }
}

impl UpgradeMachine for TestMachine {
    fn installed_version(&mut self) -> Option<String> {
        self.tick();
        if self.half.is_some() { None } else { self.installed.clone() }
    }

    fn finish_interrupted(&mut self) {
        self.tick();
        // The package manager finishes the unpacked version, except one whose scripts fail.
        if let Some(half) = self.half.take()
            && !(half == "2" && self.does == NewVersion::DoesNotInstall)
        {
            self.installed = Some(half);
        }
    }

    fn install(&mut self, package: &Path) -> Result<(), String> {
        self.tick();
        assert!(package.is_file(), "{} is gone", package.display());
        let version = package.file_stem().unwrap().to_str().unwrap().to_owned();
        self.installs += 1;
        self.half = Some(version.clone());
        self.tick();
        if version == "2" && self.does == NewVersion::DoesNotInstall {
            return Err("its script failed".to_owned());
        }
        self.half = None;
        self.installed = Some(version);
        self.tick();
        Ok(())
    }

    fn service(&mut self) -> Result<ServiceFigures, String> {
        self.tick();
        let new = self.runs_new();
        if self.half.is_some() || new && self.does == NewVersion::DoesNotStart {
            return Err("it is not active".to_owned());
        }
        let models = if new && self.does == NewVersion::LosesModel { vec!["a"] } else { vec!["a", "b"] };
        let memory = if new && self.does == NewVersion::EatsMemory { 900 << 20 } else { 100 << 20 };
        Ok(ServiceFigures { memory, ready_models: models.into_iter().map(str::to_owned).collect() })
    }

    fn restarts(&mut self) -> u64 {
        self.tick();
        u64::from(self.runs_new() && self.does == NewVersion::EndsByItself) * self.clock_ms
    }

    fn verify_audit_log(&mut self) -> Result<(), String> {
        self.tick();
        let broken = self.runs_new() && self.does == NewVersion::BreaksAuditLog;
        if broken { Err("record 7 was changed".to_owned()) } else { Ok(()) }
    }

    fn now_ms(&mut self) -> u64 {
        self.clock_ms
    }

    fn wait(&mut self, pause: Duration) {
        self.tick();
        self.clock_ms += u64::try_from(pause.as_millis()).unwrap();
    }

    fn keep_program(&mut self) -> io::Result<()> {
        self.tick();
        self.program = true;
        Ok(())
    }

    fn forget_program(&mut self) {
        self.program = false;
    }
}

fn job() -> UpgradeJob {
    let package = |version: &str| StoredPackage { file: format!("{version}.deb"), version: version.to_owned() };
    UpgradeJob {
        rollout: "r-1".parse().unwrap(),
        release: "2".parse().unwrap(),
        package: package("2"),
        previous: package("1"),
        previous_release: Some("1".parse().unwrap()),
        soak_s: 60,
        memory_ratio_max: Some(1.5),
        before: ServiceFigures {
            memory: 100 << 20,
            ready_models: ["a", "b"].map(str::to_owned).into_iter().collect::<BTreeSet<_>>(),
        },
    }
}

/// Upgrades a machine whose power is cut after each number of operations of `cuts`, until it is idle.
fn upgrade(does: NewVersion, cuts: &[u32]) -> (UpgradeRecord, TestMachine) {
    let folder = tempfile::tempdir().unwrap();
    let packages = folder.path().join(PACKAGES_FOLDER);
    ledge_base::durable::create_folder(&packages).unwrap();
    for version in ["1", "2"] {
        ledge_base::durable::replace(&packages.join(format!("{version}.deb")), b"package").unwrap();
    }
    let mut machine = TestMachine {
        installed: Some("1".to_owned()),
        half: None,
        does,
        clock_ms: 1_000,
        program: false,
        power: None,
        installs: 0,
    };
    begin(folder.path(), &mut machine, job()).unwrap();
    let mut cuts = cuts.iter();
    for _ in 0..100 {
        machine.power = cuts.next().copied();
        let cut = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| run(folder.path(), &mut machine)));
        if let Ok(done) = cut {
            return (done.unwrap(), machine);
        }
        // While it is not idle, the program that can go back is there.
        assert!(machine.program);
    }
    panic!("it never came to an end");
}

fn fault(record: &UpgradeRecord) -> Option<UpgradeFault> {
    record.last.as_ref().unwrap().fault.as_ref().map(|(fault, _)| *fault)
}

#[test]
fn a_good_version_stays_and_each_bad_one_is_taken_back() {
    for (does, expected) in [
        (NewVersion::Good, None),
        (NewVersion::DoesNotInstall, Some(UpgradeFault::Install)),
        (NewVersion::DoesNotStart, Some(UpgradeFault::Start)),
        (NewVersion::LosesModel, Some(UpgradeFault::Models)),
        (NewVersion::EatsMemory, Some(UpgradeFault::Memory)),
        (NewVersion::EndsByItself, Some(UpgradeFault::Start)),
        (NewVersion::BreaksAuditLog, Some(UpgradeFault::Audit)),
    ] {
        let (record, machine) = upgrade(does, &[]);
        assert_eq!(fault(&record), expected, "{does:?}");
        let runs = if expected.is_none() { "2" } else { "1" };
        assert_eq!(machine.installed.as_deref(), Some(runs), "{does:?}");
        assert_eq!(record.release, Some(runs.parse().unwrap()));
        assert_eq!(record.refused.len(), usize::from(expected.is_some()));
    }
}

#[test]
fn after_a_power_cut_at_any_operation_one_of_the_two_versions_is_whole() {
    std::panic::set_hook(Box::new(|_| {}));
    for does in [NewVersion::Good, NewVersion::DoesNotInstall, NewVersion::DoesNotStart, NewVersion::BreaksAuditLog] {
        for cut in 0..50 {
            let (record, machine) = upgrade(does, &[cut]);
            assert_eq!(record.phase, UpgradePhase::Idle);
            assert_eq!(machine.half, None, "{does:?} {cut}");
            let runs = machine.installed.clone().unwrap();
            assert_eq!(record.release, Some(runs.parse().unwrap()), "{does:?} {cut}");
            assert_eq!(runs == "2", does == NewVersion::Good, "{does:?} {cut}");
        }
    }
    let _ = std::panic::take_hook();
}

proptest! {
    #[test]
    fn no_sequence_of_power_cuts_leaves_half_a_package(
        cuts in prop::collection::vec(0..30_u32, 0..12),
        does in prop::sample::select(vec![NewVersion::Good, NewVersion::DoesNotInstall, NewVersion::EatsMemory]),
    ) {
        std::panic::set_hook(Box::new(|_| {}));
        let (record, machine) = upgrade(does, &cuts);
        let _ = std::panic::take_hook();
        prop_assert_eq!(&machine.half, &None);
        let runs = machine.installed.clone().unwrap();
        prop_assert_eq!(record.release, Some(runs.parse().unwrap()));
        if does != NewVersion::Good {
            prop_assert_eq!(runs.as_str(), "1");
        }
    }
}

#[test]
#[expect(clippy::disallowed_methods, reason = "a test does not need a durable file")]
fn files_of_earlier_orders_leave_the_copied_repository() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let [kept, old] = [at("packages/ledge/2/new.deb"), at("packages/ledge/1/old.deb")];
    for file in [&kept, &old] {
        durable::create_folder(file.parent().unwrap()).unwrap();
        std::fs::write(file, "").unwrap();
    }
    std::os::unix::fs::symlink("/etc", at("link")).unwrap();
    mirror::remove_others(folder.path(), &[kept.clone()].into()).unwrap();
    assert!(kept.is_file() && !at("packages/ledge/1").exists() && !at("link").is_symlink());
}
