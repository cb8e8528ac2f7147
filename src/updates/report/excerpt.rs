//! The beginning of a long reason.

/// Longest reason, in bytes.
pub(super) const MAX_REASON_BYTES: usize = 256;

/// Returns the beginning of a text, without control characters, which JSON writes in six bytes.
pub(super) fn excerpt(reason: &str, longest: usize) -> String {
    let end = reason.floor_char_boundary(longest);
    let (start, rest) = reason.split_at(end);
    let mut text = start.replace(char::is_control, " ");
    if !rest.is_empty() {
        text.push('…');
    }
    text
}
