//! Terms of a run: deadline, priority and caller.

use std::str::FromStr;
use std::time::Instant;

use ledge_base::principal::Principal;

/// Priority of a call. Every interactive call of every model runs before any batch call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Priority {
    /// A caller waits for the answer.
    #[default]
    Interactive,
    /// Background work: it gets the remaining capacity.
    Batch,
}

impl Priority {
    /// Both priorities, the more urgent one first.
    pub const ALL: [Self; 2] = [Self::Interactive, Self::Batch];

    /// The level in Triton's counting: 0 is the default, 1 the highest; a level below the lowest is the lowest.
    pub fn from_level(level: u64) -> Self {
        if level <= 1 { Self::Interactive } else { Self::Batch }
    }

    /// The name in headers, metrics and the configuration.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Interactive => "interactive",
            Self::Batch => "batch",
        }
    }
}

/// Error for a text that is not a priority.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("expected interactive, batch or a level from 0, got {0:?}")]
pub struct InvalidPriority(String);

impl FromStr for Priority {
    type Err = InvalidPriority;

    /// A name, or a level as in Triton.
    fn from_str(text: &str) -> Result<Self, InvalidPriority> {
        let named = Self::ALL.into_iter().find(|priority| text.eq_ignore_ascii_case(priority.as_str()));
        let level = || text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())?;
        named.or_else(|| level().map(Self::from_level)).ok_or_else(|| InvalidPriority(text.to_owned()))
    }
}

/// The terms of one run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunTerms {
    /// Time after which the caller no longer needs the answer.
    pub deadline: Instant,
    pub priority: Priority,
    /// The caller; callers of one model take turns.
    pub principal: Principal,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_count_from_one_and_zero_is_the_default() {
        let levels = [0, 1, 2, 9].map(Priority::from_level);
        assert_eq!(levels, [Priority::Interactive, Priority::Interactive, Priority::Batch, Priority::Batch]);
    }
}
