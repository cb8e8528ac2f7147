//! A finding of `ledge doctor`.

use serde::{Deserialize, Serialize};

/// A finding about one thing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    pub name: String,
    pub status: FindingStatus,
    pub detail: String,
    /// The remedy; `None` when there is nothing to do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub advice: Option<String>,
    /// The number in `detail` that a diagnosis for the platform may have. It is not in the document of the findings.
    #[serde(skip)]
    pub measure: Option<FindingMeasure>,
}

/// A number of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FindingMeasure {
    /// The free room of a disk or of the memory, in bytes.
    FreeBytes(u64),
    /// The time until a certificate ends, in seconds; 0 once it has ended.
    SecondsLeft(u64),
}

/// The severity of a finding. The worst comes last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FindingStatus {
    Ok,
    /// It works, and there is something to know about it, but nothing to do.
    Info,
    /// It works, but not as well as it could.
    Warn,
    Fail,
}

impl Finding {
    pub fn ok(name: &str, detail: impl Into<String>) -> Self {
        Self { name: name.into(), status: FindingStatus::Ok, detail: detail.into(), advice: None, measure: None }
    }

    pub fn info(name: &str, detail: impl Into<String>) -> Self {
        Self { status: FindingStatus::Info, ..Self::ok(name, detail) }
    }

    pub fn warn(name: &str, detail: impl Into<String>, advice: impl Into<String>) -> Self {
        Self { status: FindingStatus::Warn, advice: Some(advice.into()), ..Self::ok(name, detail) }
    }

    pub fn fail(name: &str, detail: impl Into<String>, advice: impl Into<String>) -> Self {
        Self { status: FindingStatus::Fail, ..Self::warn(name, detail, advice) }
    }

    /// The same, with a number.
    #[must_use]
    pub fn measured(self, measure: FindingMeasure) -> Self {
        Self { measure: Some(measure), ..self }
    }
}

/// Formats a number of bytes for people.
pub fn size(bytes: u64) -> String {
    const UNITS: [&str; 4] = ["KiB", "MiB", "GiB", "TiB"];
    let mut tenths = u128::from(bytes) * 10;
    let mut unit = "bytes";
    for larger in UNITS {
        if tenths < 10_240 {
            break;
        }
        (tenths, unit) = (tenths / 1024, larger);
    }
    if tenths < 1000 && unit != "bytes" {
        format!("{}.{} {unit}", tenths / 10, tenths % 10)
    } else {
        format!("{} {unit}", tenths / 10)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_has_two_or_more_digits_and_a_unit() {
        let sizes = [0, 1023, 1024, 1536, 107_374_182_400, u64::MAX].map(size);
        assert_eq!(sizes, ["0 bytes", "1023 bytes", "1.0 KiB", "1.5 KiB", "100 GiB", "16777215 TiB"]);
    }
}
