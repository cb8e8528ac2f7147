//! The sections `[[inbox]]` of the configuration.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use ledge_base::config_path;
use ledge_base::names::{InboxName, ModelName};
use ledge_base::toml_check::{ValueProblem, in_range};
use ledge_egress::{ConfiguredDestination, WebhookConfig};
use ledge_models::serving::windows::DailyWindow;
use serde::{Deserialize, Serialize};

/// The most inboxes. Each has a thread.
pub const INBOXES_MAX: usize = 16;

/// All inboxes.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct InboxesConfig(pub Vec<InboxConfig>);

/// One inbox: a folder in which other programs put documents.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InboxConfig {
    /// Its name in topics, messages, metrics, logs, and names of CSV files.
    pub name: InboxName,
    /// The folder that is watched. Folders in it are not.
    pub path: PathBuf,
    /// The files that are written for each document.
    #[serde(default = "outputs")]
    pub outputs: Vec<InboxOutput>,
    /// The folder of these files: the name of one in `path`, or a path.
    #[serde(default = "results")]
    pub results: PathBuf,
    /// The folder that originals are moved to, in the same way. It must be on the same file system as `path`.
    #[serde(default = "done")]
    pub done: PathBuf,
    /// The folder of files that are no readable documents, in the same way.
    #[serde(default = "failed")]
    pub failed: PathBuf,
    /// Removes originals in place of moving them.
    #[serde(default)]
    pub delete_originals: bool,
    /// The model, which reads documents.
    #[serde(default = "model")]
    pub model: ModelName,
    /// The time between two looks into the folder, in milliseconds.
    #[serde(default = "poll_interval_ms", deserialize_with = "in_range::<100, 3_600_000, _, _>")]
    pub poll_interval_ms: u64,
    /// The time for which the size and the time of a file must not change before the file is taken, in milliseconds.
    #[serde(default = "settle_ms", deserialize_with = "in_range::<100, 3_600_000, _, _>")]
    pub settle_ms: u64,
    /// The time of day, in local time, in which documents are read; always without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window: Option<DailyWindow>,
    /// Publishes fields and text at the broker of `[mqtt]`.
    #[serde(default)]
    pub mqtt: bool,
    /// Gets fields and text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub webhook: Option<WebhookConfig>,
}

/// A file that is written for a document.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum InboxOutput {
    /// The whole answer.
    Json,
    /// A row with the fields, in one file for each month.
    Csv,
    /// The document with a text layer.
    Pdf,
}

fn outputs() -> Vec<InboxOutput> {
    vec![InboxOutput::Json]
}

fn results() -> PathBuf {
    "results".into()
}

fn done() -> PathBuf {
    "done".into()
}

fn failed() -> PathBuf {
    "failed".into()
}

fn model() -> ModelName {
    ModelName::constant("document_reader")
}

fn poll_interval_ms() -> u64 {
    2000
}

/// Scanners pause for some seconds between two pages.
fn settle_ms() -> u64 {
    5000
}

impl InboxConfig {
    /// [`Self::poll_interval_ms`].
    pub fn poll_interval(&self) -> Duration {
        Duration::from_millis(self.poll_interval_ms)
    }

    /// [`Self::settle_ms`].
    pub fn settle(&self) -> Duration {
        Duration::from_millis(self.settle_ms)
    }

    /// The name of the finding about it.
    pub fn check_name(&self) -> String {
        format!("inbox {}", self.name)
    }

    /// The folders that it writes to: its own, and those of results that are elsewhere.
    pub fn written_folders(&self) -> Vec<&Path> {
        let others = [&self.results, &self.done, &self.failed].map(PathBuf::as_path);
        let others = others.into_iter().filter(|folder| folder.is_absolute() && !folder.starts_with(&self.path));
        std::iter::once(self.path.as_path()).chain(others).collect()
    }

    pub(crate) fn resolve(&mut self, root: &Path) {
        config_path::resolve(&mut self.path, root);
        self.webhook.iter_mut().for_each(|webhook| webhook.resolve(root));
    }

    pub(crate) fn problems(&self) -> Vec<ValueProblem> {
        let mut problems = Vec::new();
        let mut wrong = |key: &str, problem: &str| problems.push(ValueProblem::new(key, problem));
        if self.path.as_os_str().is_empty() {
            wrong("path", "is empty: name the folder to watch");
        }
        if self.outputs.is_empty() && self.webhook.is_none() && !self.mqtt {
            wrong(
                "outputs",
                "is empty, and there is neither a webhook nor mqtt = true: nothing would come of documents",
            );
        }
        if self.outputs.iter().collect::<BTreeSet<_>>().len() < self.outputs.len() {
            wrong("outputs", "names one twice");
        }
        for (key, folder) in [("results", &self.results), ("done", &self.done), ("failed", &self.failed)] {
            if own_folder(folder).is_none() && !folder.is_absolute() {
                wrong(key, "is neither the name of a folder in `path` nor an absolute path");
            } else if *folder == self.path {
                wrong(key, "is the watched folder itself, so its files would be read as documents: name another one");
            }
        }
        let webhook = self.webhook.iter().flat_map(WebhookConfig::problems);
        problems.extend(webhook.map(|problem| problem.within("webhook")));
        problems
    }

    pub(crate) fn destination(&self) -> Option<ConfiguredDestination> {
        Some(self.webhook.as_ref()?.destination().in_section("webhook"))
    }
}

/// The name of a folder in the watched one; `None` for a path.
pub(crate) fn own_folder(folder: &Path) -> Option<&OsStr> {
    let mut components = folder.components();
    match (components.next(), components.next()) {
        // A hidden folder is where this box keeps its own files.
        (Some(Component::Normal(name)), None) => Some(name).filter(|name| !name.as_encoded_bytes().starts_with(b".")),
        _ => None,
    }
}

impl InboxesConfig {
    pub fn iter(&self) -> impl Iterator<Item = &InboxConfig> {
        self.0.iter()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The inboxes whose folder another one watches or writes to: its results would be read as documents.
    pub(crate) fn overlaps(&self) -> Vec<ValueProblem> {
        let mut problems = Vec::new();
        for (index, inbox) in self.0.iter().enumerate() {
            let others = self.0.iter().enumerate().filter(|(other, _)| *other != index);
            for (number, other) in others {
                let written = [&other.results, &other.done, &other.failed].map(|folder| other.path.join(folder));
                if (other.path == inbox.path && number < index) || written.contains(&inbox.path) {
                    let problem =
                        format!("is a folder of the inbox {}: each inbox needs folders of its own", other.name);
                    problems.push(ValueProblem::new(format!("[{index}].path"), problem));
                }
            }
        }
        problems
    }
}

#[cfg(test)]
mod tests {
    use ledge_base::toml_check;
    use ledge_part::section::ConfigSection;

    use super::*;

    #[derive(Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
    #[serde(default)]
    struct InboxesFile {
        inbox: InboxesConfig,
    }

    fn read(text: &str) -> InboxesConfig {
        toml_check::parse::<InboxesFile>("f", text).unwrap().inbox
    }

    #[track_caller]
    fn problems(text: &str, expected: &[(&str, &str)]) {
        let found = read(text).problems();
        let found: Vec<_> = found.iter().map(|problem| (problem.key.as_str(), problem.message.as_str())).collect();
        assert_eq!(found.len(), expected.len(), "{found:?}");
        for ((key, message), (expected_key, part)) in found.iter().zip(expected) {
            assert!(key == expected_key && message.contains(part), "{found:?}");
        }
    }

    #[test]
    fn an_inbox_needs_its_name_and_its_folder() {
        let InboxesConfig(inboxes) = read("[[inbox]]\nname = 'scans'\npath = '/srv/scans'");
        let inbox = &inboxes[0];
        assert_eq!((inbox.outputs.as_slice(), inbox.settle_ms), ([InboxOutput::Json].as_slice(), 5000));
        assert_eq!((inbox.results.to_str(), inbox.model.as_str()), (Some("results"), "document_reader"));
        assert!(inbox.problems().is_empty() && inbox.destination().is_none());
        assert_eq!(inbox.written_folders(), [Path::new("/srv/scans")]);
        let text = toml::to_string(&InboxesFile { inbox: InboxesConfig(inboxes.clone()) }).unwrap();
        assert_eq!(read(&text).0, inboxes);
    }

    #[test]
    fn mistakes_between_keys_are_reported_by_their_keys() {
        problems(
            "[[inbox]]\nname = 'a'\npath = '/a'\noutputs = []\nresults = 'x/y'\ndone = '/a'\nfailed = '.ledge'\n\
             [[inbox]]\nname = 'a'\npath = '/b'\noutputs = ['csv', 'csv']\nresults = '/c'\n\
             [inbox.webhook]\nurl = 'http://10.0.0.9/x'\ntoken_file = 't'\n\
             [[inbox]]\nname = 'c'\npath = '/c'\n[[inbox]]\nname = 'd'\npath = '/b'",
            &[
                ("[0].outputs", "nothing would come"),
                ("[0].results", "neither the name"),
                ("[0].done", "watched folder itself"),
                ("[0].failed", "neither the name"),
                ("[1].name", "two inboxes"),
                ("[1].outputs", "twice"),
                ("[1].webhook.token_file", "plain text"),
                ("[2].path", "the inbox a"),
                ("[3].path", "the inbox a"),
            ],
        );
    }

    #[test]
    fn the_webhook_is_a_destination_and_folders_elsewhere_are_written_to() {
        let config = read(
            "[[inbox]]\nname = 'a'\npath = '/a'\nresults = '/r'\ndone = '/a/d'\nwebhook = { url = 'https://h/x', proxy = 'p:3128' }",
        );
        let [found] = config.destinations().try_into().unwrap();
        assert_eq!((found.key.as_str(), found.at.to_string().as_str()), ("[0].webhook.url", "h:443"));
        assert_eq!(found.proxy.unwrap().key, "[0].webhook.proxy");
        assert_eq!(config.0[0].written_folders(), [Path::new("/a"), Path::new("/r")]);
    }
}
