//! The list of the messages that the broker retains for cameras. Those of removed cameras, of pictures that were
//! switched off and of entities that no longer exist are removed from the broker at the next start.
//!
//! A removal is repeated at some starts, because the broker may be away at the first one.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use ledge_base::durable;
use serde::{Deserialize, Serialize};

/// The file in the state folder.
const FILE: &str = "cameras.json";

/// The starts at which a removal is sent.
const REMOVAL_STARTS: u32 = 3;

/// The most topics of one file.
const TOPICS_MAX: usize = 50_000;

/// The largest file that is read, in bytes.
const FILE_BYTES_MAX: u64 = 16 << 20;

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
struct RetainedTopics {
    /// The topics with a retained message.
    topics: BTreeSet<String>,
    /// The topics without one any more, each with the number of starts that still remove it.
    removed: BTreeMap<String, u32>,
}

/// Notes that the broker keeps messages for `topics` from now on, and returns those that it must not keep any more. It
/// reads and writes a file.
pub fn replace(state: &Path, topics: BTreeSet<String>) -> Vec<String> {
    let path = state.join(FILE);
    let before = read(&path);
    let now = next(&before, topics);
    if now != before {
        // Only texts and numbers, so this does not fail.
        let content = serde_json::to_vec(&now).unwrap_or_default();
        if let Err(error) = durable::replace_private(&path, &content) {
            let file = path.display();
            tracing::warn!(%file, %error, "the topics of cameras cannot be stored: messages of removed cameras may stay at the broker");
        }
    }
    now.removed.into_keys().collect()
}

fn read(path: &PathBuf) -> RetainedTopics {
    let text = match std::fs::metadata(path) {
        Ok(file) if file.len() > FILE_BYTES_MAX => None,
        Ok(_) => std::fs::read(path).ok(),
        Err(_) => return RetainedTopics::default(),
    };
    text.and_then(|text| serde_json::from_slice(&text).ok()).unwrap_or_else(|| {
        tracing::warn!(file = %path.display(), "the file cannot be read: messages of removed cameras may stay at the broker");
        RetainedTopics::default()
    })
}

fn next(before: &RetainedTopics, topics: BTreeSet<String>) -> RetainedTopics {
    let again = before.removed.iter().filter_map(|(topic, left)| Some((topic.clone(), left.checked_sub(1)?)));
    let again = again.filter(|(_, left)| *left > 0);
    let new = before.topics.iter().map(|topic| (topic.clone(), REMOVAL_STARTS));
    let removed = again.chain(new).filter(|(topic, _)| !topics.contains(topic)).take(TOPICS_MAX).collect();
    RetainedTopics { topics, removed }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(topics: &[&str]) -> BTreeSet<String> {
        topics.iter().map(|topic| (*topic).to_owned()).collect()
    }

    #[test]
    fn a_topic_that_is_no_longer_used_is_removed_at_some_starts() {
        let folder = tempfile::tempdir().unwrap();
        let start = |topics: &[&str]| replace(folder.path(), set(topics));
        assert_eq!(start(&["a", "b"]), [""; 0]);
        assert_eq!(start(&["a"]), ["b"]);
        assert_eq!(start(&[]), ["a", "b"]);
        assert_eq!(start(&[]), ["a", "b"]);
        assert_eq!(start(&["a"]), [""; 0]);
        assert_eq!(start(&["a"]), [""; 0]);
    }

    #[test]
    fn a_damaged_file_is_as_none() {
        let folder = tempfile::tempdir().unwrap();
        durable::replace(&folder.path().join(FILE), b"{").unwrap();
        assert_eq!(replace(folder.path(), set(&["a"])), [""; 0]);
        assert_eq!(replace(folder.path(), set(&[])), ["a"]);
    }
}
