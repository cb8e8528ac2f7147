//! Uploads to a web server: bytes of one kind of content.

use bytes::Bytes;
use http::header::{ACCEPT, HOST, USER_AGENT};
use http::{HeaderName, HeaderValue, Method, Request};
use http_body_util::Full;

use super::{HttpAnswer, HttpClient, HttpClientSettings, HttpError};
use crate::policy::EgressContent;
use crate::{Egress, EgressPurpose};

/// The most bytes of an answer that are read: it matters only when something is wrong.
const ANSWER_BYTES_MAX: usize = 16 << 10;

/// Sends one kind of content to one server. Clones share the idle connections.
#[derive(Debug, Clone)]
pub struct UploadClient(HttpClient);

impl HttpClient {
    /// A client that may also send, namely the audit log and its proofs. Nothing is connected yet.
    pub fn for_audit(egress: Egress, settings: HttpClientSettings, purpose: EgressPurpose) -> UploadClient {
        UploadClient(Self::with(egress, settings, purpose, EgressContent::Audit, super::REPLY_TIMEOUT))
    }

    /// A client that may also send requests for the certificate of this box. Nothing is connected yet.
    pub fn for_certificates(egress: Egress, settings: HttpClientSettings) -> UploadClient {
        let (purpose, content) = (EgressPurpose::Membership, EgressContent::CertificateRequest);
        UploadClient(Self::with(egress, settings, purpose, content, super::REPLY_TIMEOUT))
    }

    /// A client that looks for the questions of the platform, and may also send answers. Nothing is connected yet.
    pub fn for_questions(egress: Egress, settings: HttpClientSettings) -> UploadClient {
        let (purpose, content) = (EgressPurpose::Membership, EgressContent::Diagnosis);
        UploadClient(Self::with(egress, settings, purpose, content, super::REPLY_TIMEOUT))
    }
}

impl UploadClient {
    #[cfg(test)]
    pub(crate) fn with_reply_timeout(
        egress: Egress,
        settings: HttpClientSettings,
        reply_timeout: std::time::Duration,
    ) -> Self {
        Self(HttpClient::with(egress, settings, EgressPurpose::Audit, EgressContent::Audit, reply_timeout))
    }

    /// Requests a file and returns its first `longest` bytes.
    pub async fn get(&self, path: &str, longest: usize) -> Result<HttpAnswer, HttpError> {
        self.0.get(path, 0).await?.answer(longest).await
    }

    /// Puts a file to `path`, already percent-encoded. When an idle connection fails that is used again, the request is
    /// sent once more on a new one, so the server may get the file twice.
    pub async fn put(
        &self,
        path: &str,
        headers: &[(HeaderName, HeaderValue)],
        body: Bytes,
    ) -> Result<HttpAnswer, HttpError> {
        self.send(Method::PUT, path, headers, body).await
    }

    /// Posts to `path`. As with [`Self::put`], the server may get it twice.
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
        self.0.ask(path, 0, request).await?.answer(ANSWER_BYTES_MAX).await
    }
}
