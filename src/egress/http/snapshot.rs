//! Requests for one picture at a time, as network cameras answer them.

use std::time::Duration;

use bytes::Bytes;
use http::HeaderValue;
use http::header::{ACCEPT, AUTHORIZATION, HOST, USER_AGENT};
use http_body_util::Full;
use hyper::Request;

use super::{HttpClient, HttpClientSettings, HttpDownload, HttpError};
use crate::policy::EgressContent;
use crate::{Egress, EgressPurpose};

/// The most bytes of an answer without a picture that are read, so that its connection can be used again.
const REFUSAL_BYTES_MAX: usize = 16 << 10;

/// Gets pictures from one camera. Clones share the idle connections.
#[derive(Debug, Clone)]
pub struct SnapshotClient(HttpClient);

/// An answer before its body is read.
pub struct SnapshotResponse {
    pub status: u16,
    /// The values of `WWW-Authenticate` of an answer 401.
    pub challenges: Vec<String>,
    /// The most bytes that the body has: its length, if the camera says it.
    pub bytes_max: usize,
    answer: HttpDownload,
    client: HttpClient,
    path: String,
}

impl SnapshotClient {
    /// A client for one camera, which has `reply_timeout` for each step. Nothing is connected yet.
    pub fn new(egress: Egress, settings: HttpClientSettings, reply_timeout: Duration) -> Self {
        Self(HttpClient::with(egress, settings, EgressPurpose::Camera, EgressContent::Request, reply_timeout))
    }

    /// Requests `path`, already percent-encoded. A picture of more than `longest` bytes is an error.
    pub async fn get(
        &self,
        path: &str,
        authorization: Option<&str>,
        longest: usize,
    ) -> Result<SnapshotResponse, HttpError> {
        let request = || {
            let mut request =
                Request::get(path).header(HOST, self.0.host()).header(USER_AGENT, "ledge").header(ACCEPT, "*/*");
            if let Some(authorization) = authorization {
                let mut value =
                    HeaderValue::from_str(authorization).map_err(|error| self.0.unusable(path, error.to_string()))?;
                value.set_sensitive(true);
                request = request.header(AUTHORIZATION, value);
            }
            request.body(Full::new(Bytes::new())).map_err(|error| self.0.unusable(path, error.to_string()))
        };

        let mut answer = self.0.ask(path, 0, request).await?;
        let longest = if answer.status == 200 { longest } else { REFUSAL_BYTES_MAX };
        if answer.status == 200 {
            if answer.is_stream {
                let reason = "it is a stream of pictures without end: use the camera's address of a single picture";
                return Err(self.0.unusable(path, reason.to_owned()));
            }
            if answer.length.is_some_and(|length| length > longest as u64) {
                return Err(too_large(&self.0, path, longest));
            }
        }
        let length = answer.length.and_then(|length| usize::try_from(length).ok());
        Ok(SnapshotResponse {
            status: answer.status,
            challenges: std::mem::take(&mut answer.challenges),
            bytes_max: length.map_or(longest, |length| length.min(longest)),
            answer,
            client: self.0.clone(),
            path: path.to_owned(),
        })
    }
}

impl SnapshotResponse {
    /// Reads the body: the whole picture, or with an error status only its beginning.
    pub async fn body(self) -> Result<Bytes, HttpError> {
        let Self { status, bytes_max, answer, client, path, .. } = self;
        if status != 200 {
            return Ok(answer.answer(bytes_max).await?.body);
        }
        let body = answer.answer(bytes_max + 1).await?.body;
        if body.len() > bytes_max { Err(too_large(&client, &path, bytes_max)) } else { Ok(body) }
    }
}

fn too_large(client: &HttpClient, path: &str, longest: usize) -> HttpError {
    client.unusable(path, format!("it is larger than {} MiB", longest >> 20))
}
