//! What was signed.

/// A file that was signed.
#[derive(Debug, Clone, PartialEq)]
pub struct Target {
    /// Its name.
    pub path: String,
    /// Its bytes.
    pub length: u64,
    /// Their SHA-256, in hexadecimal.
    pub sha256: String,
    /// What was signed with it.
    pub custom: Option<serde_json::Value>,
    /// Where it is below `targets/`.
    pub location: String,
}
