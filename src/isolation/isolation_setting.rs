//! Where a model runs, as the box and the model's own file have it.

use std::fmt;

use serde::de::IntoDeserializer as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The process that a model runs in. None of them is the daemon.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Isolation {
    /// A sandboxed process, together with other models.
    #[default]
    Process,
    /// A separate sandboxed process.
    Own,
}

/// `isolation` as a file has it. Earlier versions had a third value, `none`, for a model that runs in the daemon
/// itself. It is read as `process`: old files stay valid, and no file loads a runtime into the daemon.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct IsolationSetting {
    /// The value in effect.
    pub isolation: Isolation,
    /// True when the file says `none`.
    pub is_none: bool,
}

/// The value that no longer exists.
const NONE: &str = "none";

/// The finding about a file that says [`NONE`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IsolationFinding {
    pub detail: &'static str,
    pub advice: &'static str,
}

impl fmt::Display for IsolationFinding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; {}", self.detail, self.advice)
    }
}

impl IsolationSetting {
    /// The finding about a file that still says `none`. Completes a sentence about the key.
    pub fn finding(self) -> Option<IsolationFinding> {
        self.is_none.then_some(IsolationFinding {
            detail: "\"none\" no longer exists: models run in a sandboxed process, as with \"process\"",
            advice: "remove the line, or set it to \"process\" or \"own\"",
        })
    }
}

impl From<Isolation> for IsolationSetting {
    fn from(isolation: Isolation) -> Self {
        Self { isolation, is_none: false }
    }
}

impl Serialize for IsolationSetting {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.isolation.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for IsolationSetting {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        if text == NONE {
            return Ok(Self { isolation: Isolation::Process, is_none: true });
        }
        Isolation::deserialize(text.into_deserializer()).map(Self::from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<IsolationSetting, serde_json::Error> {
        serde_json::from_value(text.into())
    }

    #[test]
    fn none_is_read_as_process_with_a_finding_and_written_as_what_is_in_effect() {
        let none = read("none").unwrap();
        assert_eq!(none.isolation, Isolation::Process);
        assert!(none.finding().unwrap().to_string().contains("no longer exists"));
        assert_eq!(serde_json::to_value(none).unwrap(), "process");
        for (text, isolation) in [("process", Isolation::Process), ("own", Isolation::Own)] {
            assert_eq!(read(text).unwrap(), isolation.into());
            assert_eq!(read(text).unwrap().finding(), None);
        }
    }

    #[test]
    fn a_wrong_value_is_refused_with_those_that_exist() {
        let refused = read("no").unwrap_err().to_string();
        assert!(refused.contains("`process`") && refused.contains("`own`") && !refused.contains("none"), "{refused}");
    }

    #[test]
    fn own_is_stronger_than_process() {
        assert_eq!(Isolation::Process.max(Isolation::Own), Isolation::Own);
    }
}
