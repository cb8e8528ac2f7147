//! Placeholder.
/// S
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Side {
    /// r
    pub requests: u64,
    /// e
    pub errors: u64,
    /// p
    pub p95_us: Option<u64>,
}
/// O
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Observed {
    /// c
    pub candidate: Side,
    /// i
    pub incumbent: Side,
    /// a
    pub agreed: u64,
    /// d
    pub disagreed: u64,
    /// c
    pub classes: Vec<u64>,
}
