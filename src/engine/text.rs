//! Messages of one line, and of bounded length.

/// The most bytes of the reason why a runtime gets no model.
pub(super) const REASON_BYTES_MAX: usize = 4096;

/// The beginning of a text of the file, for a message to people.
pub(crate) fn shortened(text: &str) -> String {
    const CHARS: usize = 120;
    match text.char_indices().nth(CHARS) {
        Some((end, _)) => format!("{}...", text.get(..end).unwrap_or_default()),
        None => text.to_owned(),
    }
}

/// Puts a runtime's message on one line: each run of white space becomes one space.
pub(super) fn one_line(message: &str) -> String {
    message.split_whitespace().collect::<Vec<_>>().join(" ")
}
