//! The names of the models of the chain, and of its results.

/// Finds lines. The others depend on it, so it is the first, which stands for the chain where one model must.
pub const FIND: &str = "find";
pub const READ: &str = "read";
pub const LINE_TURN: &str = "line_turn";
pub const PAGE_TURN: &str = "page_turn";

/// The names of the results: the text of each page, and the answer in JSON.
pub const RESULTS: &[&str] = &["text", "document"];
