//! The verdict of a detector on a sample: its state, its band, and the events that begin and end.

use serde::{Deserialize, Serialize};

/// Kind of an unusual state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UnusualKind {
    /// A few samples above what was expected, or below.
    Spike,
    Dip,
    /// The level moved and stays.
    LevelShift,
    /// A lasting rise or fall, such as a leak.
    Trend,
    /// The series fluctuates more or less than it did.
    Spread,
    /// The same value again and again, where it used to change.
    Stuck,
    /// No samples.
    Silence,
}

impl UnusualKind {
    pub const ALL: [Self; 7] =
        [Self::Spike, Self::Dip, Self::LevelShift, Self::Trend, Self::Spread, Self::Stuck, Self::Silence];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Spike => "spike",
            Self::Dip => "dip",
            Self::LevelShift => "level_shift",
            Self::Trend => "trend",
            Self::Spread => "spread",
            Self::Stuck => "stuck",
            Self::Silence => "silence",
        }
    }
}

/// Side of the expected value. Of a spread: more, or less.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Direction {
    Up,
    Down,
    Neither,
}

impl Direction {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Up => "up",
            Self::Down => "down",
            Self::Neither => "neither",
        }
    }
}

/// An unusual state, from its begin.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Unusual {
    pub kind: UnusualKind,
    pub direction: Direction,
    pub since_ms: i64,
    /// The largest score so far. The threshold is 1.
    pub score: f64,
}

/// Where a series is.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "snake_case", tag = "state")]
pub enum SeriesState {
    /// Too little was seen. `needed` more samples are needed before samples are judged.
    Learning {
        needed: u32,
    },
    Normal,
    Unusual(Unusual),
}

/// The values that are usual for one sample.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Band {
    pub low: f64,
    pub high: f64,
}

/// An event that began or ended with a sample.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Change {
    Began(Unusual),
    /// `is_new_normal`: the state lasted so long that it is what is usual now.
    Ended {
        event: Unusual,
        is_new_normal: bool,
    },
}

/// The judgement of one sample.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Verdict {
    /// At least 1 where an event may begin. 0 while learning.
    pub score: f64,
    pub expected: f64,
    pub band: Band,
    pub state: SeriesState,
    pub change: Option<Change>,
}

/// A sample that cannot be judged. The state is as before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SampleError {
    #[error("the value is not a number between -1e16 and 1e16")]
    NotANumber,
    #[error("the time is millions of years away")]
    OutOfTime,
    #[error("the time is not after that of the last sample")]
    NotLater,
}
