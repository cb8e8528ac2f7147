//! The error of a window state that cannot be read.

use super::super::record;

/// A state that cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the window state is damaged")]
pub struct DamagedWindow;

impl From<record::DamagedBytes> for DamagedWindow {
    fn from(_: record::DamagedBytes) -> Self {
        Self
    }
}
