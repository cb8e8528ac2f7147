//! The findings about inboxes.

use std::path::{Path, PathBuf};

use ledge_part::check::Finding;
use ledge_part::section::DoctorContext;

use crate::config::{InboxConfig, InboxesConfig};
use crate::http::{InboxDocument, InboxesDocument};

/// Asks the daemon how each inbox is; without a daemon, looks for its folder.
pub fn checks(config: &InboxesConfig, context: &DoctorContext<'_>) -> Vec<Finding> {
    if config.is_empty() {
        return Vec::new();
    }
    let status = (context.ask_daemon)("/inboxes").and_then(|status| serde_json::from_value(status).ok());
    let InboxesDocument { inboxes } = status.unwrap_or(InboxesDocument { inboxes: Vec::new() });
    let check = |inbox: &InboxConfig| {
        let state = inboxes.iter().find(|state| state.name == inbox.name.as_str());
        state.map_or_else(|| without_daemon(inbox), of_state)
    };
    config.iter().map(check).collect()
}

/// The finding about an inbox in a state.
fn of_state(state: &InboxDocument) -> Finding {
    let InboxDocument { name, read, failed, waiting, problem, left_by_others, receivers } = state;
    let name = format!("inbox {name}");
    if let Some(problem) = problem {
        let advice = "see that the folder is there, that the user of the service may write into it, that the unit lets \
                      the service do so (`ledge config systemd-drop-in`), and that the disk has room";
        return Finding::fail(&name, format!("{waiting} files wait: {problem}"), advice);
    }
    let failing: Vec<_> = receivers
        .iter()
        .filter_map(|to| {
            let error = to.error.as_ref()?;
            Some(format!("{} messages wait for the {}: {error}", to.waiting, to.way))
        })
        .collect();
    if !failing.is_empty() {
        let advice = "check the receiver, the network, inbox.webhook or [mqtt], and [egress]";
        return Finding::fail(&name, failing.join("\n"), advice);
    }
    if !left_by_others.is_empty() {
        let left: Vec<_> = left_by_others.iter().map(|(device, count)| format!("{device}: {count}")).collect();
        let advice = "if that box is gone, move its files from .ledge/DEVICE/claimed back into the folder";
        let detail = format!("files that other boxes claimed over an hour ago: {}", left.join(", "));
        return Finding::warn(&name, detail, advice);
    }
    let detail = format!("{read} documents since the start, {waiting} files wait");
    if *failed > 0 {
        let advice = "look into its folder of failed files (inbox.failed): a text beside each says why";
        return Finding::warn(&name, format!("{detail}, {failed} are no readable documents"), advice);
    }
    Finding::ok(&name, detail)
}

fn without_daemon(inbox: &InboxConfig) -> Finding {
    let name = inbox.check_name();
    let folders = [&inbox.path, &inbox.results, &inbox.done, &inbox.failed].map(PathBuf::as_path);
    let is_missing = |folder: &&&Path| folder.is_absolute() && !folder.is_dir();
    match folders.iter().find(is_missing) {
        Some(missing) => {
            let advice = "make the folder, or mount its share, and let the user of the service write into it";
            Finding::fail(&name, format!("{} is no folder, or cannot be seen", missing.display()), advice)
        }
        None => Finding::ok(&name, format!("watches {}", inbox.path.display())),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use ledge_part::check::FindingStatus;

    use super::*;
    use crate::http::ReceiverDocument;

    #[test]
    fn what_needs_a_person_is_a_finding() {
        let state = InboxDocument {
            name: "scans".to_owned(),
            read: 7,
            failed: 0,
            waiting: 1,
            problem: None,
            left_by_others: BTreeMap::new(),
            receivers: vec![ReceiverDocument { way: "mqtt".to_owned(), sent: 7, waiting: 0, error: None }],
        };
        let status = |state: InboxDocument| of_state(&state).status;
        assert_eq!(status(state.clone()), FindingStatus::Ok);
        let left_by_others = BTreeMap::from([("till-9".to_owned(), 3)]);
        assert_eq!(status(InboxDocument { left_by_others, ..state.clone() }), FindingStatus::Warn);
        assert_eq!(status(InboxDocument { failed: 1, ..state.clone() }), FindingStatus::Warn);
        assert_eq!(status(InboxDocument { problem: Some("full".to_owned()), ..state.clone() }), FindingStatus::Fail);
        let error = Some("refused".to_owned());
        let receivers = vec![ReceiverDocument { way: "mqtt".to_owned(), sent: 7, waiting: 2, error }];
        let found = of_state(&InboxDocument { receivers, ..state });
        assert_eq!(
            (found.status, found.detail.as_str()),
            (FindingStatus::Fail, "2 messages wait for the mqtt: refused")
        );
    }
}
