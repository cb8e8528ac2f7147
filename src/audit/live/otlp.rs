//! The live copy by OpenTelemetry: OTLP/HTTP logs in JSON.

mod message;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_TYPE};
use http::{HeaderName, HeaderValue};
use ledge_base::backoff::{Backoff, random};
use ledge_base::clock;
use ledge_base::names::DeviceName;
use ledge_base::secret::SecretFile;
use ledge_egress::{
    AuditClient, Egress, EgressError, HttpAnswer, HttpClient, HttpError, HttpSettings, Purpose, TlsSettings, WebAddress,
};
use ledge_service::shutdown::Shutdown;
use tokio::time::{Instant, timeout};

use super::super::status::LiveRecord;
use super::{AT_ONCE, FIRST_PAUSE, Feed, LAST, LONGEST_PAUSE};

/// How long records of this copy's own connections wait for others. A server that ends the connection after each request
/// makes one of them with each request: they must not go round in a circle.
const OWN_COMPANY: Duration = Duration::from_mins(1);

/// Where the copy goes.
pub(super) struct Otlp {
    client: AuditClient,
    path: String,
    is_safe: bool,
    token: Option<SecretFile>,
    device: String,
}

/// Why records were not taken.
enum Failure {
    /// Another try may do better, not before a time if the server says so.
    Passing(String, Option<Duration>),
    /// What is not allowed stays so.
    Denied(String),
    /// Another try would do no better.
    Final(String),
}

impl Otlp {
    pub fn new(
        url: &WebAddress,
        tls: TlsSettings,
        token: Option<SecretFile>,
        device: &DeviceName,
        egress: Egress,
    ) -> Self {
        let settings = HttpSettings { at: url.at.clone(), tls: url.tls.then_some(tls), proxy: None };
        let client = HttpClient::for_audit(egress, settings, Purpose::Otlp);
        let is_safe = url.tls || url.at.host.is_loopback();
        Self { client, path: url.path.clone(), is_safe, token, device: device.to_string() }
    }

    /// Sends until the daemon stops.
    pub async fn run(self, mut feed: Feed, shutdown: Shutdown) {
        let mut backoff = Backoff::new(FIRST_PAUSE, LONGEST_PAUSE);
        loop {
            let pause = tokio::select! {
                pause = self.send_next(&mut feed, &mut backoff) => pause,
                () = shutdown.requested() => {
                    feed.take_up();
                    // What does not go is lost, as is what comes after.
                    let _ = timeout(LAST, self.send_batch(&mut feed)).await;
                    return;
                }
            };
            let Some(pause) = pause else { continue };
            tokio::select! {
                () = feed.gather(Instant::now() + pause) => {}
                () = shutdown.requested() => return,
            }
        }
    }

    /// Waits for records and sends them; for how long to wait before the next, if it did not go well.
    async fn send_next(&self, feed: &mut Feed, backoff: &mut Backoff) -> Option<Duration> {
        feed.gather_company(OWN_COMPANY, is_own).await;
        match self.send_batch(feed).await {
            Ok(()) => {
                feed.is_well();
                backoff.reset();
                None
            }
            Err(Failure::Final(reason)) => {
                // These records are at fault, or the settings: the next ones may do better, and nobody is served by waiting.
                let records = feed.backlog.len().min(AT_ONCE);
                feed.sent(records, records as u64);
                feed.failed(&reason);
                Some(backoff.pause(random()))
            }
            Err(Failure::Denied(reason)) => {
                backoff.give_way();
                feed.failed(&reason);
                Some(backoff.pause(random()))
            }
            Err(Failure::Passing(reason, after)) => {
                feed.failed(&reason);
                Some(backoff.pause(random()).max(after.unwrap_or_default()))
            }
        }
    }

    /// Sends the oldest records that wait.
    async fn send_batch(&self, feed: &mut Feed) -> Result<(), Failure> {
        let records = feed.waiting(AT_ONCE);
        if records.is_empty() {
            return Ok(());
        }
        let answer = self.post(&records).await?;
        let refused = message::refused(&answer.body).min(records.len() as u64);
        feed.sent(records.len(), refused);
        Ok(())
    }

    async fn post(&self, records: &[Arc<LiveRecord>]) -> Result<HttpAnswer, Failure> {
        if !self.is_safe {
            let reason = "records of the audit log leave this machine only over https://".to_owned();
            return Err(Failure::Denied(reason));
        }
        let body = message::body(&self.device, records, clock::unix_millis());
        let body = body.map_err(|error| Failure::Final(error.to_string()))?;
        let mut headers = vec![(CONTENT_TYPE, HeaderValue::from_static("application/json"))];
        headers.extend(self.authorization().await?);
        let answer = self.client.post(&self.path, &headers, Bytes::from(body)).await.map_err(of_http)?;
        match answer.status {
            200..=299 => Ok(answer),
            // OTLP, section "Retryable Response Codes".
            429 | 502 | 503 | 504 => {
                let reason = format!("the collector takes no records now (status {})", answer.status);
                Err(Failure::Passing(reason, answer.retry_after))
            }
            status => {
                let said: String = String::from_utf8_lossy(&answer.body).chars().take(200).collect();
                Err(Failure::Final(format!("the collector refuses records (status {status}): {said:?}")))
            }
        }
    }

    /// The token, read anew: it may have been replaced.
    async fn authorization(&self) -> Result<Option<(HeaderName, HeaderValue)>, Failure> {
        let Some(file) = self.token.clone() else { return Ok(None) };
        let passing = |reason: String| Failure::Passing(reason, None);
        let read = tokio::task::spawn_blocking(move || {
            let token = file.read_text().map_err(|error| error.to_string())?;
            let value = HeaderValue::try_from(format!("Bearer {token}"));
            let mut value = value.map_err(|_| format!("{file} holds no token: expected one line of ASCII"))?;
            value.set_sensitive(true);
            Ok(value)
        });
        let value = read.await.map_err(|error| passing(error.to_string()))?.map_err(passing)?;
        Ok(Some((AUTHORIZATION, value)))
    }
}

fn of_http(error: HttpError) -> Failure {
    match error {
        HttpError::Connect(EgressError::Denied { reason }) => Failure::Denied(reason),
        error @ (HttpError::Connect(_) | HttpError::Exchange { .. } | HttpError::Stalled { .. }) => {
            Failure::Passing(error.to_string(), None)
        }
        error @ (HttpError::Redirect { .. } | HttpError::Answer { .. }) => Failure::Final(error.to_string()),
    }
}

/// Whether a record tells of a connection of such a copy.
pub(super) fn is_own(record: &LiveRecord) -> bool {
    let purpose = b"\"purpose\":\"otlp\"";
    record.action == "connection_opened" && record.line.windows(purpose.len()).any(|window| window == purpose)
}
