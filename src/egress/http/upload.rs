//! Sending to a web server: bytes of the audit log, and nothing else.

use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, HOST, USER_AGENT};
use http::{HeaderName, HeaderValue, Method, Request};
use http_body_util::Full;

use super::{HttpClient, HttpError, HttpSettings};
use crate::policy::Content;
use crate::{Egress, Purpose};

/// The most of an answer that is read, in bytes: it is of interest when something is wrong.
const LONGEST_ANSWER: usize = 16 << 10;

/// Sends the audit log, and what proves it, to one server. Clones share the connections that are kept.
#[derive(Debug, Clone)]
pub struct AuditClient(HttpClient);

/// An answer as a whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HttpAnswer {
    pub status: u16,
    /// The body, or its beginning where it is long.
    pub body: Bytes,
    /// After what time another try is worth it, where the server says it.
    pub retry_after: Option<Duration>,
}

impl HttpClient {
    /// A client that may also send, and what it sends is the audit log. Nothing is connected yet.
    pub fn for_audit(egress: Egress, settings: HttpSettings, purpose: Purpose) -> AuditClient {
        AuditClient(Self::with(egress, settings, purpose, Content::Audit, super::PATIENCE))
    }
}

impl AuditClient {
    #[cfg(test)]
    pub(crate) fn with_patience(egress: Egress, settings: HttpSettings, patience: Duration) -> Self {
        Self(HttpClient::with(egress, settings, Purpose::Audit, Content::Audit, patience))
    }

    /// Asks for a file, of which the first `longest` bytes are of interest.
    pub async fn get(&self, path: &str, longest: usize) -> Result<HttpAnswer, HttpError> {
        self.0.get(path, 0).await?.answer(longest).await
    }

    /// Puts a file to `path`, percent-encoded as it has to be. A connection that breaks is tried again once, if it was a
    /// kept one: the server may have taken the file all the same.
    pub async fn put(
        &self,
        path: &str,
        headers: &[(HeaderName, HeaderValue)],
        body: Bytes,
    ) -> Result<HttpAnswer, HttpError> {
        self.send(Method::PUT, path, headers, body).await
    }

    /// Posts to `path`, as [`Self::put`] does: the server may get it twice.
    pub async fn post(
        &self,
        path: &str,
        headers: &[(HeaderName, HeaderValue)],
        body: Bytes,
    ) -> Result<HttpAnswer, HttpError> {
        self.send(Method::POST, path, headers, body).await
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        headers: &[(HeaderName, HeaderValue)],
        body: Bytes,
    ) -> Result<HttpAnswer, HttpError> {
        let request = || {
            let request = Request::builder().method(&method).uri(path);
            let request = request.header(HOST, self.0.host()).header(USER_AGENT, "ledge").header(ACCEPT, "*/*");
            let request = headers.iter().fold(request, |request, (name, value)| request.header(name, value));
            request.body(Full::new(body.clone())).map_err(|error| self.0.unusable(path, error.to_string()))
        };
        self.0.ask(path, 0, request).await?.answer(LONGEST_ANSWER).await
    }
}
