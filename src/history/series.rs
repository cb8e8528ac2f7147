//! The names of series, their columns and their resolutions.

use std::fmt;
use std::str::FromStr;

use ledge_base::names::ModelName;
use ledge_base::principal::Principal;

use crate::readings::BOX_COLUMNS;

/// The figures of a model or a caller, in base units. `p50_s` and `p99_s` are of the calls that were answered, `queue_s`
/// is their mean wait, `cores` the CPU time of runs in a second.
pub const USAGE_COLUMNS: [&str; 9] = [
    "calls_per_s",
    "failed_per_s",
    "refused_per_s",
    "p50_s",
    "p99_s",
    "queue_s",
    "cores",
    "bytes_in_per_s",
    "bytes_out_per_s",
];

/// The longest name of a series, in bytes. The name of a caller may be an MQTT topic.
pub const NAME_BYTES_MAX: usize = 512;

/// The text for all models or callers that have no series of their own.
const OTHERS: &str = "others";

/// One series.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SeriesName {
    /// The whole box.
    Box,
    /// All versions of a model.
    Model(Box<str>),
    /// The models without a series of their own.
    OtherModels,
    /// A caller, in the form of [`Principal`].
    Caller(Box<str>),
    /// The callers without a series of their own.
    OtherCallers,
}

/// The kinds of series of which a box has several.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SeriesKind {
    Model,
    Caller,
}

impl SeriesKind {
    /// The series that counts those without one of their own.
    pub fn others(self) -> SeriesName {
        match self {
            Self::Model => SeriesName::OtherModels,
            Self::Caller => SeriesName::OtherCallers,
        }
    }
}

impl SeriesName {
    pub fn of_model(model: &ModelName) -> Self {
        Self::Model(model.as_str().into())
    }

    /// The series of a caller. A name that is too long is cut.
    pub fn of_caller(principal: &Principal) -> Self {
        let name = principal.to_string();
        match principal {
            Principal::Others => Self::OtherCallers,
            _ => Self::Caller(name.chars().scan(0, take_within).collect::<String>().into()),
        }
    }

    /// The kind; `None` for that of the box.
    pub fn kind(&self) -> Option<SeriesKind> {
        match self {
            Self::Box => None,
            Self::Model(_) | Self::OtherModels => Some(SeriesKind::Model),
            Self::Caller(_) | Self::OtherCallers => Some(SeriesKind::Caller),
        }
    }

    pub fn columns(&self) -> &'static [&'static str] {
        if *self == Self::Box { &BOX_COLUMNS } else { &USAGE_COLUMNS }
    }
}

fn take_within(bytes: &mut usize, c: char) -> Option<char> {
    *bytes += c.len_utf8();
    (*bytes <= NAME_BYTES_MAX - "caller:".len()).then_some(c)
}

impl fmt::Display for SeriesName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Box => f.write_str("box"),
            Self::Model(name) => write!(f, "model:{name}"),
            Self::OtherModels => write!(f, "models:{OTHERS}"),
            Self::Caller(name) => write!(f, "caller:{name}"),
            Self::OtherCallers => write!(f, "callers:{OTHERS}"),
        }
    }
}

/// A text that names no series.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("expected box, model:NAME, models:others, caller:NAME or callers:others")]
pub struct InvalidSeriesName;

impl FromStr for SeriesName {
    type Err = InvalidSeriesName;

    fn from_str(text: &str) -> Result<Self, InvalidSeriesName> {
        let name = match (text, text.split_once(':')) {
            _ if text.len() > NAME_BYTES_MAX => return Err(InvalidSeriesName),
            ("box", _) => Self::Box,
            (_, Some(("models", OTHERS))) => Self::OtherModels,
            (_, Some(("callers", OTHERS))) => Self::OtherCallers,
            (_, Some(("model", name))) if !name.is_empty() => Self::Model(name.into()),
            (_, Some(("caller", name))) if !name.is_empty() => Self::Caller(name.into()),
            _ => return Err(InvalidSeriesName),
        };
        Ok(name)
    }
}

/// The length of the intervals of records, and how many are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Resolution {
    /// 5 s for an hour.
    FiveSeconds,
    /// A minute for a day.
    Minute,
    /// An hour for two years.
    Hour,
}

impl Resolution {
    pub const ALL: [Self; 3] = [Self::FiveSeconds, Self::Minute, Self::Hour];

    /// The length of an interval in seconds.
    pub const fn seconds(self) -> u32 {
        match self {
            Self::FiveSeconds => 5,
            Self::Minute => 60,
            Self::Hour => 3600,
        }
    }

    /// The number of records that are kept.
    pub const fn slots(self) -> u32 {
        match self {
            Self::FiveSeconds => 720,
            Self::Minute => 1440,
            // 731 days.
            Self::Hour => 17_544,
        }
    }

    /// The name in requests.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::FiveSeconds => "5s",
            Self::Minute => "1m",
            Self::Hour => "1h",
        }
    }

    /// The interval of a time in milliseconds since the Unix epoch: intervals are counted from there.
    pub fn slot(self, unix_millis: u64) -> u32 {
        u32::try_from(unix_millis / 1000 / u64::from(self.seconds())).unwrap_or(u32::MAX)
    }

    /// The time at which an interval begins, in milliseconds since the Unix epoch.
    pub fn begin_ms(self, slot: u32) -> u64 {
        u64::from(slot) * u64::from(self.seconds()) * 1000
    }
}

impl FromStr for Resolution {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        Self::ALL.into_iter().find(|resolution| resolution.as_str() == text).ok_or(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_reads_as_it_is_written() {
        let names = ["box", "model:wine", "models:others", "caller:key:till-7", "caller:ip:::1", "callers:others"];
        for text in names {
            assert_eq!(text.parse::<SeriesName>().unwrap().to_string(), text);
        }
        for wrong in ["", "boxes", "model:", "caller:", "models:wine", "others", &format!("caller:{}", "x".repeat(600))]
        {
            assert_eq!(wrong.parse::<SeriesName>(), Err(InvalidSeriesName), "{wrong}");
        }
    }

    #[test]
    fn the_longest_caller_has_a_name_that_reads() {
        let long = Principal::Mqtt("ü".repeat(400).into());
        let name = SeriesName::of_caller(&long);
        assert_eq!(name.to_string().parse::<SeriesName>(), Ok(name.clone()));
        assert!(name.to_string().len() > NAME_BYTES_MAX - 3);
        assert_eq!(SeriesName::of_caller(&Principal::Others), SeriesName::OtherCallers);
    }

    #[test]
    fn an_interval_holds_its_beginning() {
        for resolution in Resolution::ALL {
            let slot = resolution.slot(1_767_225_601_234);
            assert_eq!(resolution.slot(resolution.begin_ms(slot)), slot);
            assert_eq!(resolution.slot(resolution.begin_ms(slot) - 1), slot - 1);
        }
    }
}
