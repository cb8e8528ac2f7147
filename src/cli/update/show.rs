//! `ledge update status` and `trust`: the state of updates, in columns.

use std::io::Write as _;

use ledge_updates::status_report::{FaultReport, LastReport, SubjectReport, UpdatesReport};

use crate::cli::Output;
use crate::cli::features::show::columns;

/// `ledge update status`.
pub fn status(report: &UpdatesReport, out: &mut Output) -> anyhow::Result<()> {
    let text = |value: &Option<String>, none: &str| value.clone().unwrap_or_else(|| none.to_owned());
    let mut head = vec![
        vec!["repository".to_owned(), report.repository.clone()],
        vec!["last success".to_owned(), text(&report.checked, "none since the start")],
        vec!["manifest".to_owned(), text(&report.published, "none was accepted")],
    ];
    head.extend(report.error.iter().map(|error| vec!["last failure".to_owned(), error.clone()]));
    columns(&head, out)?;
    writeln!(out)?;
    if report.subjects.is_empty() {
        writeln!(out, "There are no updates yet.")?;
        return Ok(());
    }

    let mut rows = vec![["SUBJECT", "VERSION", "BEFORE", "STAGE", "LAST"].map(str::to_owned).to_vec()];
    for subject in &report.subjects {
        let version = |version: Option<u64>| version.map_or_else(|| "-".to_owned(), |version| version.to_string());
        let pinned = if subject.pinned { " (pinned)" } else { "" };
        rows.push(vec![
            subject.subject.clone(),
            format!("{}{pinned}", version(subject.version)),
            version(subject.previous),
            stage(subject),
            subject.last.as_ref().map_or_else(|| "-".to_owned(), last),
        ]);
    }
    columns(&rows, out)?;

    for subject in &report.subjects {
        let name = &subject.subject;
        if let Some(waiting) = &subject.waiting {
            writeln!(out, "\n{name}: version {} ({}) waits: {}", waiting.version, waiting.rollout, waiting.reason)?;
        }
        let fault = subject.trial.as_ref().and_then(|trial| trial.fault.as_ref());
        if let Some(FaultReport { reason, since, attempts, next }) = fault {
            writeln!(out, "\n{name}: {attempts} attempts failed since {since}, the next one is due {next}: {reason}")?;
        }
        // The reason of the fault may be the same text; report it once.
        if let Some(error) = subject.error.as_ref().filter(|error| fault.is_none_or(|fault| fault.reason != **error)) {
            writeln!(out, "\n{name}: tried again after a failure: {error}")?;
        }
        if let Some(LastReport { rollout, version, detail: Some(detail), .. }) = &subject.last {
            writeln!(out, "\n{name}: version {version} ({rollout}) was rolled back: {detail}")?;
        }
    }
    Ok(())
}

fn stage(subject: &SubjectReport) -> String {
    match &subject.trial {
        Some(trial) => {
            let held = if trial.held.is_some() { ", held" } else { "" };
            format!("{} {} for {} s{held}", trial.version, subject.stage, trial.since_s)
        }
        None => subject.stage.clone(),
    }
}

fn last(last: &LastReport) -> String {
    match (&last.stage, &last.cause) {
        (Some(stage), Some(cause)) => format!("{} rolled back ({cause}, {stage})", last.version),
        _ => format!("{} {}", last.version, last.result),
    }
}

/// `ledge update trust`.
pub fn trust(report: &UpdatesReport, out: &mut Output) -> anyhow::Result<()> {
    if report.roles.is_empty() {
        writeln!(out, "No metadata is trusted yet: no check has succeeded.")?;
        if let Some(error) = &report.error {
            writeln!(out, "{error}")?;
        }
        return Ok(());
    }
    let mut rows = vec![["ROLE", "VERSION", "EXPIRES"].map(str::to_owned).to_vec()];
    for (role, status) in &report.roles {
        let expires = status.expires.clone().unwrap_or_else(|| "known after the next check".to_owned());
        rows.push(vec![role.clone(), status.version.to_string(), expires]);
    }
    Ok(columns(&rows, out)?)
}

#[cfg(test)]
#[path = "../../updates/status_example.rs"]
mod status_example;

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    #[derive(Clone, Default)]
    struct ShownOutput(Arc<Mutex<Vec<u8>>>);

    impl std::io::Write for ShownOutput {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    fn shown(show: impl FnOnce(&UpdatesReport, &mut Output) -> anyhow::Result<()>, report: &UpdatesReport) -> String {
        let written = ShownOutput::default();
        show(report, &mut Output::to(written.clone())).unwrap();
        let written = written.0.lock().unwrap().clone();
        String::from_utf8(written).unwrap()
    }

    #[test]
    fn the_tables_show_live_versions_and_the_reasons_of_delays() {
        let report = UpdatesReport::from(&status_example::status());
        let text = shown(status, &report);
        let row = text.lines().find(|line| line.starts_with("models/m ")).unwrap();
        let cells: Vec<_> = row.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).collect();
        assert_eq!(cells, ["models/m", "2", "1", "3 staged for 7 s, held", "4 rolled back (golden, verified)"]);
        for part in [
            "last failure  no way",
            "models/m: version 3 (r-3) waits: paused by the platform",
            "models/m: 2 attempts failed since 2026-11-20T00:00:00Z, the next one is due 2026-11-20T01:00:00Z: download: status 404",
            "models/m: tried again after a failure: disk: no room",
            "models/m: version 4 (r-2) was rolled back: 7 of 10",
            "models/a: version 1 (r-9) waits: needs Ledge 9.0.0",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        let text = shown(trust, &report);
        assert!(text.contains("timestamp  41       2026-11-20T01:00:00Z"), "{text}");
        let nothing = UpdatesReport { roles: [].into(), subjects: Vec::new(), ..report };
        assert!(shown(trust, &nothing).contains("no way"));
        assert!(shown(status, &nothing).contains("There are no updates yet."));
    }
}
