//! The steps of root's service. The next step follows from the state on the disk alone, so a power cut at any point does no
//! harm: at the next start the service finishes what it finds.
//!
//! *Installing*: the package manager runs, or was interrupted. *Watching*: the new version has to stay healthy for a time.
//! *Returning*: the previous package is installed again. After each of them the state is *idle*, with an outcome.

use std::cmp::Reverse;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::record::{
    ServiceFigures, StoredPackage, UpgradeFault, UpgradeJob, UpgradeOutcome, UpgradePhase, UpgradeRecord,
};
use crate::trust::time::millis;

/// The attempts to install a package, those that a power cut interrupted included.
const INSTALL_ATTEMPTS_MAX: u32 = 3;

/// The starts of this service while it watches a new version, after which that version counts as the cause.
const WATCH_STARTS_MAX: u32 = 5;

/// The time that the new version has to become ready: models may have to be compiled.
pub const READY_TIMEOUT: Duration = Duration::from_mins(10);

/// The time that models have to answer after the service is ready.
const MODELS_TIMEOUT: Duration = Duration::from_mins(1);

/// The times that a service that is not ready yet may end by itself.
const RESTARTS_MAX: u64 = 3;

/// The pause between two looks at the service.
pub const LOOK_INTERVAL: Duration = Duration::from_secs(5);

/// Memory that is never too much more, in bytes.
const MEMORY_SLACK_BYTES: u64 = 64 << 20;

/// The folder of packages below that of root's service.
pub const PACKAGES_FOLDER: &str = "packages";

/// The machine, as the steps need it.
pub trait UpgradeMachine {
    /// The version of the installed package; `None` while the package manager has to finish something first.
    fn installed_version(&mut self) -> Option<String>;

    /// Lets the package manager finish what was interrupted.
    fn finish_interrupted(&mut self);

    /// Installs a package and starts the service again.
    fn install(&mut self, package: &Path) -> Result<(), String>;

    /// The service now; an error says why it is not ready.
    fn service(&mut self) -> Result<ServiceFigures, String>;

    /// The number of times that the service ended by itself since it was started on purpose.
    fn restarts(&mut self) -> u64;

    /// Verifies the audit log with the installed version.
    fn verify_audit_log(&mut self) -> Result<(), String>;

    /// Milliseconds since the Unix epoch.
    fn now_ms(&mut self) -> u64;

    fn wait(&mut self, pause: Duration);

    /// Keeps this program, so that it can go back when the new one does not even start. Without the old one nothing is
    /// installed.
    fn keep_program(&mut self) -> io::Result<()>;

    fn forget_program(&mut self);
}

/// Takes steps until the state is idle. An error is one of the disk of this box: the next start tries again.
pub fn run(folder: &Path, machine: &mut dyn UpgradeMachine) -> io::Result<UpgradeRecord> {
    loop {
        let record = UpgradeRecord::load(folder)?;
        let next = match record.phase.clone() {
            UpgradePhase::Idle => return Ok(record),
            UpgradePhase::Installing { job, attempts } => installing(folder, machine, record, job, attempts)?,
            UpgradePhase::Watching { job, since_ms, starts } => {
                watching(folder, machine, record, job, since_ms, starts)?
            }
            UpgradePhase::Returning { job, cause, detail, attempts } => {
                returning(folder, machine, record, job, cause, detail, attempts)?
            }
        };
        next.save(folder)?;
        if next.phase == UpgradePhase::Idle {
            machine.forget_program();
            remove_older(folder)?;
        }
    }
}

/// Begins an upgrade: from here on, a power cut is followed by the new version or by the old one.
pub fn begin(folder: &Path, machine: &mut dyn UpgradeMachine, job: UpgradeJob) -> io::Result<()> {
    let record = UpgradeRecord::load(folder)?;
    machine.keep_program()?;
    UpgradeRecord { phase: UpgradePhase::Installing { job, attempts: 0 }, ..record }.save(folder)
}

fn installing(
    folder: &Path,
    machine: &mut dyn UpgradeMachine,
    record: UpgradeRecord,
    job: UpgradeJob,
    attempts: u32,
) -> io::Result<UpgradeRecord> {
    let mut is_installed = false;
    if attempts > 0 {
        machine.finish_interrupted();
        is_installed = machine.installed_version().as_ref() == Some(&job.package.version);
    }
    if !is_installed {
        if attempts >= INSTALL_ATTEMPTS_MAX {
            let detail = "it was interrupted again and again".to_owned();
            return Ok(return_from(record, job, UpgradeFault::Install, detail));
        }
        // Counted before it runs, so that a package that takes the machine down is not tried for ever.
        let counted = UpgradePhase::Installing { job: job.clone(), attempts: attempts + 1 };
        UpgradeRecord { phase: counted, ..record.clone() }.save(folder)?;
        if let Err(detail) = machine.install(&file(folder, &job.package)) {
            return Ok(return_from(record, job, UpgradeFault::Install, detail));
        }
    }
    let since_ms = machine.now_ms();
    Ok(UpgradeRecord { phase: UpgradePhase::Watching { job, since_ms, starts: 0 }, ..record })
}

fn watching(
    folder: &Path,
    machine: &mut dyn UpgradeMachine,
    record: UpgradeRecord,
    job: UpgradeJob,
    since_ms: u64,
    starts: u32,
) -> io::Result<UpgradeRecord> {
    if starts >= WATCH_STARTS_MAX {
        let detail = "the machine started again and again while it ran".to_owned();
        return Ok(return_from(record, job, UpgradeFault::Start, detail));
    }
    let counted = UpgradePhase::Watching { job: job.clone(), since_ms, starts: starts + 1 };
    UpgradeRecord { phase: counted, ..record.clone() }.save(folder)?;
    Ok(match watch(machine, &job) {
        Ok(()) => UpgradeRecord {
            release: Some(job.release),
            phase: UpgradePhase::Idle,
            last: Some(UpgradeOutcome { rollout: job.rollout, release: job.release, fault: None }),
            ..record
        },
        Err((cause, detail)) => return_from(record, job, cause, detail),
    })
}

/// Watches the new version until its time is over.
fn watch(machine: &mut dyn UpgradeMachine, job: &UpgradeJob) -> Result<(), (UpgradeFault, String)> {
    let begun_ms = machine.now_ms();
    // A power cut starts the service anew, and the time with it.
    let mut ready_since_ms = None;
    let mut figures = loop {
        let now_ms = machine.now_ms();
        let late = now_ms.saturating_sub(begun_ms) > millis(READY_TIMEOUT);
        let service = machine.service();
        // A service that is ready has loaded its models, or has given them up.
        ready_since_ms = service.as_ref().ok().map(|_| ready_since_ms.unwrap_or(now_ms));
        let late =
            late || ready_since_ms.is_some_and(|since_ms| now_ms.saturating_sub(since_ms) > millis(MODELS_TIMEOUT));
        match service {
            Ok(figures) if is_complete(&figures, job) => break figures,
            Ok(figures) if late => return Err((UpgradeFault::Models, missing(&figures, job))),
            Err(reason) if late || machine.restarts() >= RESTARTS_MAX => return Err((UpgradeFault::Start, reason)),
            Ok(_) | Err(_) => machine.wait(LOOK_INTERVAL),
        }
    };
    let ready_ms = machine.now_ms();
    let restarts = machine.restarts();
    loop {
        if let Some(ratio) = job.memory_ratio_max {
            let most = memory_limit(job.before.memory, ratio);
            if figures.memory > most {
                let detail = format!("the service uses {} MiB, and may use {} MiB", figures.memory >> 20, most >> 20);
                return Err((UpgradeFault::Memory, detail));
            }
        }
        if machine.restarts() > restarts {
            return Err((UpgradeFault::Start, "the service ended by itself".to_owned()));
        }
        if machine.now_ms().saturating_sub(ready_ms) >= job.soak_s.saturating_mul(1000) {
            return machine.verify_audit_log().map_err(|reason| (UpgradeFault::Audit, reason));
        }
        machine.wait(LOOK_INTERVAL);
        figures = match machine.service() {
            Ok(figures) if is_complete(&figures, job) => figures,
            Ok(figures) => return Err((UpgradeFault::Models, missing(&figures, job))),
            Err(reason) => return Err((UpgradeFault::Start, reason)),
        };
    }
}

#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a limit of memory"
)]
fn memory_limit(before: u64, ratio: f64) -> u64 {
    ((before as f64 * ratio) as u64).max(before.saturating_add(MEMORY_SLACK_BYTES))
}

/// True if every model that answered before answers now.
fn is_complete(figures: &ServiceFigures, job: &UpgradeJob) -> bool {
    job.before.ready_models.is_subset(&figures.ready_models)
}

fn missing(figures: &ServiceFigures, job: &UpgradeJob) -> String {
    let missing: Vec<_> = job.before.ready_models.difference(&figures.ready_models).cloned().collect();
    format!("models that answered before do not: {}", missing.join(", "))
}

fn return_from(record: UpgradeRecord, job: UpgradeJob, cause: UpgradeFault, detail: String) -> UpgradeRecord {
    UpgradeRecord { phase: UpgradePhase::Returning { job, cause, detail, attempts: 0 }, ..record }
}

fn returning(
    folder: &Path,
    machine: &mut dyn UpgradeMachine,
    mut record: UpgradeRecord,
    job: UpgradeJob,
    cause: UpgradeFault,
    detail: String,
    attempts: u32,
) -> io::Result<UpgradeRecord> {
    let counted = UpgradePhase::Returning {
        job: job.clone(),
        cause,
        detail: detail.clone(),
        attempts: attempts.saturating_add(1),
    };
    UpgradeRecord { phase: counted, ..record.clone() }.save(folder)?;
    machine.finish_interrupted();
    let mut said = detail;
    if attempts > 0 || machine.installed_version().as_ref() != Some(&job.previous.version) {
        let mut tries = 0;
        while let Err(reason) = machine.install(&file(folder, &job.previous)) {
            tries += 1;
            if tries >= INSTALL_ATTEMPTS_MAX {
                // There is nothing better to do than to say it; the files stay for a person.
                said = format!("{said}; and the previous package cannot be installed: {reason}");
                break;
            }
            machine.wait(LOOK_INTERVAL);
            machine.finish_interrupted();
        }
    }
    record.refused.insert(job.release);
    let fault = Some((cause, said));
    let last = Some(UpgradeOutcome { rollout: job.rollout, release: job.release, fault });
    Ok(UpgradeRecord { release: job.previous_release, phase: UpgradePhase::Idle, last, ..record })
}

fn file(folder: &Path, package: &StoredPackage) -> PathBuf {
    folder.join(PACKAGES_FOLDER).join(&package.file)
}

/// Removes all packages but the newest two: the installed one, and the one before it or the one that was taken back.
fn remove_older(folder: &Path) -> io::Result<()> {
    let mut files: Vec<_> = std::fs::read_dir(folder.join(PACKAGES_FOLDER))?.collect::<Result<_, _>>()?;
    files.sort_by_key(|entry| Reverse(entry.metadata().and_then(|file| file.modified()).ok()));
    files.iter().skip(2).try_for_each(|entry| std::fs::remove_file(entry.path()))
}
