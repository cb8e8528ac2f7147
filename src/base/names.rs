//! Names that are valid by construction.
//!
//! A name is checked when it is made, at the edge. No code below the edge checks it again.

use std::fmt;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};

use crate::toml_check::from_text;

/// A text that is not a name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what} {text:?} {reason}")]
pub struct InvalidName {
    what: &'static str,
    text: String,
    reason: &'static str,
}

/// The longest name, in bytes: it becomes a file name, a topic level and a metric label.
pub const MAX_NAME_LENGTH: usize = 128;

fn check(what: &'static str, text: &str) -> Result<(), InvalidName> {
    let reason = if text.is_empty() {
        "is empty"
    } else if text.len() > MAX_NAME_LENGTH {
        "is longer than 128 bytes"
    } else if text.starts_with('.') {
        "starts with a dot"
    } else if !text.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b)) {
        "has a character outside A-Z a-z 0-9 . _ -"
    } else {
        return Ok(());
    };
    Err(InvalidName { what, text: text.chars().take(MAX_NAME_LENGTH).collect(), reason })
}

/// A valid name like `text`, to propose; `None` where too little of it would be left.
fn similar(text: &str) -> Option<String> {
    let is_valid = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    let similar: String = text.trim_start_matches('.').chars().map(|c| if is_valid(c) { c } else { '_' }).collect();
    (check("", &similar).is_ok() && similar.chars().any(|c| c.is_ascii_alphanumeric())).then_some(similar)
}

macro_rules! name_type {
    ($(#[$doc:meta])* $name:ident, $what:literal) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, JsonSchema)]
        #[serde(transparent)]
        pub struct $name(std::sync::Arc<str>);

        impl $name {
            /// A name that the program itself gives.
            ///
            /// # Panics
            /// In tests, when the text is not a name.
            pub fn constant(text: &'static str) -> Self {
                debug_assert_eq!(check($what, text), Ok(()));
                Self(text.into())
            }

            /// A valid name like `text`, to propose.
            pub fn similar_to(text: &str) -> Option<Self> {
                similar(text).map(|similar| Self(similar.into()))
            }

            /// The text, for a message, a path component or a label.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl FromStr for $name {
            type Err = InvalidName;

            fn from_str(text: &str) -> Result<Self, InvalidName> {
                check($what, text)?;
                Ok(Self(text.into()))
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                from_text(deserializer)
            }
        }
    };
}

name_type!(
    /// The name of a model: its folder in the model repository. `[A-Za-z0-9._-]+`, not starting with a dot.
    ModelName,
    "model name"
);
name_type!(
    /// The identity of this box, or of a group or fleet of boxes: one valid MQTT topic level.
    DeviceName,
    "device name"
);
name_type!(
    /// The name of an API key, for its holder.
    KeyName,
    "key name"
);
name_type!(
    /// A region where data may be, such as `eu`.
    RegionName,
    "region"
);
name_type!(
    /// The name of a camera: a topic level and a metric label.
    CameraName,
    "camera name"
);
name_type!(
    /// The name of an alert: a part of a path and a metric label.
    AlertName,
    "alert name"
);
name_type!(
    /// The name of an inbox: a topic level, a metric label and a part of file names.
    InboxName,
    "inbox name"
);
name_type!(
    /// The name of a zone within a camera's picture.
    ZoneName,
    "zone name"
);
name_type!(
    /// The name of an entity, a join key, a feature view, a feature, a push source or a feature service.
    FeatureName,
    "name"
);

/// The version of a model: its numbered folder. Positive; no sign and no leading zero, as in Triton.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "u64", into = "u64")]
pub struct ModelVersion(u64);

impl ModelVersion {
    /// The number.
    pub fn get(self) -> u64 {
        self.0
    }
}

impl TryFrom<u64> for ModelVersion {
    type Error = InvalidName;

    fn try_from(number: u64) -> Result<Self, InvalidName> {
        if number == 0 {
            return Err(InvalidName { what: "model version", text: "0".into(), reason: "is not a positive integer" });
        }
        Ok(Self(number))
    }
}

impl From<ModelVersion> for u64 {
    fn from(version: ModelVersion) -> u64 {
        version.0
    }
}

impl FromStr for ModelVersion {
    type Err = InvalidName;

    fn from_str(text: &str) -> Result<Self, InvalidName> {
        let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit()) && !text.starts_with('0');
        let number = if digits { text.parse().ok() } else { None };
        number.map(Self).ok_or_else(|| InvalidName {
            what: "model version",
            text: text.chars().take(MAX_NAME_LENGTH).collect(),
            reason: "is not a positive integer without leading zeros",
        })
    }
}

impl fmt::Display for ModelVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// True if an environment variable is a setting of Ledge. Those of the platform's tool are not.
pub fn is_setting(variable: &str) -> bool {
    variable.starts_with("LEDGE_") && !variable.starts_with("LEDGE_PLATFORM_")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_one_safe_path_component() {
        for good in ["a", "efficientnet_lite0", "v1.2-rc", &"x".repeat(128)] {
            assert!(good.parse::<ModelName>().is_ok(), "{good}");
        }
        for bad in ["", ".", "..", ".hidden", "a/b", "a b", "ä", "a\0", "+", "#", &"x".repeat(129)] {
            assert!(bad.parse::<ModelName>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_valid_name_is_proposed_for_one_that_is_not() {
        let similar = |text: &str| ModelName::similar_to(text).map(|name| name.to_string());
        assert_eq!(similar("My Model (2)").unwrap(), "My_Model__2_");
        assert_eq!(similar(".modèle").unwrap(), "mod_le");
        assert_eq!(similar(&"a".repeat(MAX_NAME_LENGTH + 1)), None);
        assert_eq!(similar("???"), None);
    }

    #[test]
    fn a_version_is_a_positive_integer_without_leading_zeros() {
        assert_eq!("18446744073709551615".parse::<ModelVersion>().map(ModelVersion::get), Ok(u64::MAX));
        for bad in ["", "0", "01", "-1", "+1", "1.0", "abc", "18446744073709551616", "١"] {
            assert!(bad.parse::<ModelVersion>().is_err(), "{bad}");
        }
    }
}
