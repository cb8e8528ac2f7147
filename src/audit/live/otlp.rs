//! The live copy by OpenTelemetry: OTLP/HTTP logs in JSON.

mod message;

use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::header::{AUTHORIZATION, CONTENT_TYPE};
use http::{HeaderName, HeaderValue};
use ledge_base::clock;
use ledge_base::names::DeviceName;
use ledge_base::secret::SecretFile;
use ledge_base::toml_check::{empty_if_none, none_if_empty};
use ledge_egress::{Egress, HttpClient, TlsClientFiles, UploadClient, WebAddress};
use serde::{Deserialize, Serialize};

use super::copy::{
    LiveCopy, LiveCopyAddress, LiveCopyDelivery, LiveCopyDisclosure, RecordBatchError, RecordBatchResponse,
    RecordBatchSender,
};
use crate::status::LiveCopyRecord;

/// The most characters of a refusal that messages repeat.
const REFUSAL_CHARACTERS_MAX: usize = 200;

/// A collector that each record is also sent to at once, as a log of OpenTelemetry (OTLP/HTTP). It may lose some.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct OtlpConfig {
    /// The address of the collector's logs, such as `https://HOST:4318/v1/logs`; `None`: records are not sent by OTLP.
    #[serde(deserialize_with = "none_if_empty", serialize_with = "empty_if_none")]
    pub url: Option<WebAddress>,
    /// The file with a token for `Authorization: Bearer`.
    #[serde(deserialize_with = "none_if_empty", serialize_with = "empty_if_none")]
    pub token_file: Option<SecretFile>,
    /// The section `[audit.otlp.tls]`.
    pub tls: TlsClientFiles,
}

impl LiveCopy for OtlpConfig {
    fn name(&self) -> &'static str {
        "otlp"
    }

    fn address_key(&self) -> &'static str {
        "url"
    }

    fn address(&self) -> Option<LiveCopyAddress> {
        self.url.as_ref().map(LiveCopyAddress::of_web)
    }

    fn encryption_advice(&self) -> &'static str {
        "use https://"
    }

    fn tls(&self) -> &TlsClientFiles {
        &self.tls
    }

    fn resolve(&mut self, root: &Path) {
        self.tls.resolve(root);
        if let Some(file) = &mut self.token_file {
            file.resolve(root);
        }
    }

    fn disclosure(&self) -> LiveCopyDisclosure {
        LiveCopyDisclosure {
            protocol: "OTLP",
            beside_records: None,
            request_headers: &[("authorization", "for a collector: the token of audit.otlp.token_file")],
        }
    }

    fn delivery(&self, address: &LiveCopyAddress, device: &DeviceName, egress: &Egress) -> LiveCopyDelivery {
        let path = self.url.as_ref().map_or_else(|| "/".to_owned(), |url| url.path.clone());
        let client = HttpClient::for_audit(egress.clone(), self.http_settings(address), self.purpose());
        LiveCopyDelivery::Requests(Box::new(OtlpExporter {
            client,
            path,
            token: self.token_file.clone(),
            device: device.to_string(),
        }))
    }
}

/// Sends requests to the collector.
struct OtlpExporter {
    client: UploadClient,
    path: String,
    token: Option<SecretFile>,
    device: String,
}

impl RecordBatchSender for OtlpExporter {
    fn send<'a>(
        &'a self,
        records: &'a [Arc<LiveCopyRecord>],
    ) -> BoxFuture<'a, Result<RecordBatchResponse, RecordBatchError>> {
        Box::pin(self.post(records))
    }
}

impl OtlpExporter {
    async fn post(&self, records: &[Arc<LiveCopyRecord>]) -> Result<RecordBatchResponse, RecordBatchError> {
        let body = message::body(&self.device, records, clock::unix_millis());
        let body = body.map_err(|error| RecordBatchError::Refused { reason: error.to_string() })?;
        let mut headers = vec![(CONTENT_TYPE, HeaderValue::from_static("application/json"))];
        headers.extend(self.authorization().await?);

        let answer = self.client.post(&self.path, &headers, Bytes::from(body)).await?;
        match answer.status {
            200..=299 => Ok(RecordBatchResponse { refused: message::refused(&answer.body) }),
            // OTLP, section "Retryable Response Codes".
            429 | 502 | 503 | 504 => {
                let reason = format!("the collector takes no records now (status {})", answer.status);
                Err(RecordBatchError::Temporary { reason, retry_after: answer.retry_after })
            }
            status => {
                let body = String::from_utf8_lossy(&answer.body);
                let refusal: String = body.chars().take(REFUSAL_CHARACTERS_MAX).collect();
                Err(RecordBatchError::Refused {
                    reason: format!("the collector refuses records (status {status}): {refusal:?}"),
                })
            }
        }
    }

    /// The token, read again each time: it may have been replaced.
    async fn authorization(&self) -> Result<Option<(HeaderName, HeaderValue)>, RecordBatchError> {
        let Some(file) = self.token.clone() else { return Ok(None) };
        let temporary = |reason: String| RecordBatchError::Temporary { reason, retry_after: None };
        let read = tokio::task::spawn_blocking(move || {
            let token = file.read_text().map_err(|error| error.to_string())?;
            let value = HeaderValue::try_from(format!("Bearer {token}"));
            let mut value = value.map_err(|_| format!("{file} holds no token: expected one line of ASCII"))?;
            value.set_sensitive(true);
            Ok(value)
        });
        let value = read.await.map_err(|error| temporary(error.to_string()))?.map_err(temporary)?;
        Ok(Some((AUTHORIZATION, value)))
    }
}
