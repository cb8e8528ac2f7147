//! The finding about jobs.

use ledge_part::check::Finding;
use ledge_part::section::DoctorContext;

use crate::http::{JobDocument, JobsDocument};

/// Asks the daemon how jobs are. Without a daemon, or without jobs, there is nothing to find.
pub fn checks(context: &DoctorContext<'_>) -> Vec<Finding> {
    let answer = (context.ask_daemon)("/jobs").and_then(|answer| serde_json::from_value::<JobsDocument>(answer).ok());
    let jobs = answer.map(|answer| answer.jobs).unwrap_or_default();
    if jobs.is_empty() { Vec::new() } else { vec![of_jobs(&jobs)] }
}

fn of_jobs(jobs: &[JobDocument]) -> Finding {
    let told = |state: &str| {
        let found = jobs.iter().filter(|job| job.state == state);
        let told = found.map(|job| format!("{}: {}", job.id, job.reason.as_deref().unwrap_or_default()));
        told.collect::<Vec<_>>().join("\n")
    };
    let (stuck, failed) = (told("stuck"), told("failed"));
    if !stuck.is_empty() {
        let advice = "see that its folder is there, that the unit opens it (`ledge config systemd-drop-in`), that the \
                      model is loaded, and that the disk has room";
        return Finding::fail("jobs", format!("these jobs wait:\n{stuck}"), advice);
    }
    if !failed.is_empty() {
        let advice = "correct the input and add the job again; `ledge jobs remove ID` removes this one";
        return Finding::warn("jobs", format!("these jobs could not go on:\n{failed}"), advice);
    }
    let ended = jobs.iter().filter(|job| job.state == "done").count();
    Finding::ok("jobs", format!("{} to do, {ended} done", jobs.len() - ended))
}
