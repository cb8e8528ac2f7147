//! Rules about system calls and their arguments, of which filters are made.

use std::collections::BTreeMap;

/// A condition on an argument of a system call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ArgumentCondition {
    pub index: u8,
    pub size: ArgumentWidth,
    pub is: ArgumentComparison,
}

/// The part of an argument that the kernel reads. The rest is ignored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ArgumentWidth {
    Bits32,
    Bits64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ArgumentComparison {
    Equal(u64),
    NotEqual(u64),
    /// The bits of the mask are these.
    Masked {
        mask: u64,
        bits: u64,
    },
}

/// A system call by its number, with the conditions under which a filter matches it: all of one of the lists. Without
/// lists it always does.
pub(crate) type FilterRules = BTreeMap<i64, Vec<Vec<ArgumentCondition>>>;
