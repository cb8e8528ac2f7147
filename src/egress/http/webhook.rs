//! Messages to a webhook: one JSON document at a time.

use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_TYPE, HOST, USER_AGENT};
use http::{HeaderName, HeaderValue, Request};
use http_body_util::Full;

use super::{HttpAnswer, HttpClient, HttpClientSettings, HttpError};
use crate::policy::EgressContent;
use crate::{Egress, EgressPurpose};

/// The most bytes of an answer that are read, so that its connection can be used again. Its body means nothing here.
const ANSWER_BYTES_MAX: usize = 16 << 10;

/// Sends documents of one kind of content to one server. Clones share the idle connections.
#[derive(Debug, Clone)]
pub struct WebhookClient(HttpClient);

impl WebhookClient {
    /// A client for one server, which has `reply_timeout` for each step. Nothing is connected yet.
    pub fn new(
        egress: Egress,
        settings: HttpClientSettings,
        (purpose, content): (EgressPurpose, EgressContent),
        reply_timeout: Duration,
    ) -> Self {
        Self(HttpClient::with(egress, settings, purpose, content, reply_timeout))
    }

    /// Posts `document` to `path`, already percent-encoded. `login` is the name and the value of a header. When an idle
    /// connection fails that is used again, the document is sent once more on a new one, so the server may get it
    /// twice.
    pub async fn post(
        &self,
        path: &str,
        login: Option<(&HeaderName, &str)>,
        document: Bytes,
    ) -> Result<HttpAnswer, HttpError> {
        let login = match login {
            None => None,
            Some((name, value)) => {
                // The error says nothing about the value.
                let mut value =
                    HeaderValue::from_str(value).map_err(|error| self.0.unusable(path, error.to_string()))?;
                value.set_sensitive(true);
                Some((name, value))
            }
        };
        let request = || {
            let mut request = Request::post(path)
                .header(HOST, self.0.host())
                .header(USER_AGENT, "ledge")
                .header(ACCEPT, "*/*")
                .header(CONTENT_TYPE, "application/json");
            if let Some((name, value)) = &login {
                request = request.header(*name, value);
            }
            request.body(Full::new(document.clone())).map_err(|error| self.0.unusable(path, error.to_string()))
        };
        self.0.ask(path, 0, request).await?.answer(ANSWER_BYTES_MAX).await
    }
}
