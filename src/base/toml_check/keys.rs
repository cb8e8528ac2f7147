//! Keys of entries, such as `camera[0].url`.

/// The key of an entry of a table or array: `camera` and `[0].url` make `camera[0].url`.
pub fn within(table: &str, key: &str) -> String {
    let dot = if table.is_empty() || key.starts_with('[') { "" } else { "." };
    format!("{table}{dot}{key}")
}

/// The section of a key.
pub fn section(key: &str) -> &str {
    key.split(['.', '[']).next().unwrap_or_default()
}
