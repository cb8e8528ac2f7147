//! The event time of a row in a message. Pure.

use std::fmt;
use std::str::FromStr;

use ledge_base::clock::TimeZone;
use ledge_base::toml_check::from_text;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The word for the time zone of this box.
const LOCAL: &str = "local";

/// The time zone of the clock of devices that write times without one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceZone {
    name: String,
    pub(super) zone: TimeZone,
}

/// The name of a time zone that this box does not have.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "time zone {0:?} is not known on this box: expected a name such as \"Europe/Berlin\", or \"local\"; zones come with \
     the package tzdata"
)]
pub struct UnknownZone(String);

impl FromStr for DeviceZone {
    type Err = UnknownZone;

    fn from_str(name: &str) -> Result<Self, UnknownZone> {
        let zone = if name == LOCAL { Some(TimeZone::local()) } else { TimeZone::named(name) };
        let zone = zone.ok_or_else(|| UnknownZone(name.chars().take(64).collect()))?;
        Ok(Self { name: name.to_owned(), zone })
    }
}

impl fmt::Display for DeviceZone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

impl Serialize for DeviceZone {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for DeviceZone {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        from_text(deserializer)
    }
}

/// The event time of a row without a field for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MissingTime {
    /// The message is refused: an old row without its time would pass for a new one.
    #[default]
    Refuse,
    /// The time at which the message came.
    Arrival,
}

impl MissingTime {
    /// Returns `true` for the default.
    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it with a reference to the field")]
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }
}
