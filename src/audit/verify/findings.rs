//! What is wrong with a log, and where.

use serde::Serialize;

/// In which way a log is not what it should be. The later ones are worse.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Wrong {
    Gap,
    /// There is another history of the same log.
    Fork,
    /// What is there is not what was signed.
    Tampered,
}

impl Wrong {
    /// In a word.
    pub fn name(self) -> &'static str {
        match self {
            Self::Gap => "gap",
            Self::Fork => "fork",
            Self::Tampered => "tampered",
        }
    }
}

/// One thing that is wrong.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    pub wrong: Wrong,
    /// The first record that it is about, where that can be told.
    pub seq: Option<u64>,
    pub what: String,
}

/// How many are listed of each kind; in a log of another shape nothing would be right.
const LISTED: usize = 20;

/// What is wrong so far: the first ones in words, the others counted.
#[derive(Debug, Clone, Default)]
pub struct Findings {
    /// The first ones of each kind.
    pub list: Vec<Finding>,
    pub more: u64,
}

impl Findings {
    /// One more.
    pub fn push(&mut self, wrong: Wrong, seq: impl Into<Option<u64>>, what: impl FnOnce() -> String) {
        // One of each kind has to be in the list: the verdict is read from it.
        if self.list.iter().filter(|finding| finding.wrong == wrong).count() < LISTED {
            self.list.push(Finding { wrong, seq: seq.into(), what: what() });
        } else {
            self.more += 1;
        }
    }
}
