//! On what terms a run is wanted: until when, how urgently, and by whom.

use std::time::Instant;

use crate::principal::Principal;

/// How urgent a call is. Every interactive call of every model goes before any batch call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Priority {
    /// Somebody waits for the answer.
    #[default]
    Interactive,
    /// Background work: it gets what is left over.
    Batch,
}

impl Priority {
    /// Both, the more urgent one first.
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

/// The terms of one run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Terms {
    /// When the caller stops caring.
    pub deadline: Instant,
    /// How urgent it is.
    pub priority: Priority,
    /// Who asked; callers of one model take turns.
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
