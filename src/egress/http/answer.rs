//! A whole answer of a web server.

use std::time::Duration;

use bytes::Bytes;

/// A whole answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HttpAnswer {
    pub status: u16,
    /// The body, cut off when it is long.
    pub body: Bytes,
    /// The server's `Retry-After`.
    pub retry_after: Option<Duration>,
}
