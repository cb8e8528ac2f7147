//! The way to a webhook.

use std::time::Duration;

use bytes::Bytes;
use http::HeaderName;
use http::header::AUTHORIZATION;
use ledge_base::secret::{SecretError, SecretFile};
use ledge_egress::{AlertClient, Egress, HttpError};
use ledge_service::off_thread::blocking;
use tokio::time::timeout;
use zeroize::Zeroizing;

use crate::config::AlertConfig;

/// Limit for one step of a request, and for all of it.
const REPLY_TIMEOUT: Duration = Duration::from_secs(10);
const SEND_TIMEOUT: Duration = Duration::from_secs(30);

/// Sends messages to one webhook.
#[derive(Debug)]
pub struct Webhook {
    client: AlertClient,
    path: String,
    token_file: Option<SecretFile>,
    header: HeaderName,
}

/// The reason why a message did not arrive. It does not name the path of the webhook, which may be a secret.
#[derive(Debug, thiserror::Error)]
pub enum WebhookError {
    #[error("{0}")]
    Http(String),
    #[error(transparent)]
    Token(#[from] SecretError),
    #[error("does not answer within {} s", SEND_TIMEOUT.as_secs())]
    Late,
    #[error("the receiver refuses it: it answers with status {status}")]
    Status {
        status: u16,
        /// The pause that it asks for.
        retry_after: Option<Duration>,
    },
    #[error("there is no connection to the broker")]
    NoBroker,
}

impl Webhook {
    /// The webhook of an alert; `None` without one. Nothing is connected yet.
    pub fn new(config: &AlertConfig, egress: &Egress) -> Option<Self> {
        Some(Self {
            client: AlertClient::new(egress.clone(), config.connection()?, REPLY_TIMEOUT),
            path: config.url.as_ref()?.path.clone(),
            token_file: config.token_file.clone(),
            header: config.header(),
        })
    }

    /// Sends a message, and waits until the receiver has it.
    pub async fn send(&self, message: Bytes) -> Result<(), WebhookError> {
        timeout(SEND_TIMEOUT, self.post(message)).await.unwrap_or(Err(WebhookError::Late))
    }

    async fn post(&self, message: Bytes) -> Result<(), WebhookError> {
        let token = match self.token_file.clone() {
            None => None,
            // Read each time: a new secret needs no restart, and none is kept.
            Some(file) => Some(Zeroizing::new(blocking(move || file.read_text()).await?)),
        };
        let value = token.map(|token| match self.header {
            AUTHORIZATION => Zeroizing::new(format!("Bearer {}", *token)),
            _ => token,
        });
        let login = value.as_ref().map(|value| (&self.header, value.as_str()));
        let answer = self.client.post(&self.path, login, message).await.map_err(without_path)?;
        match answer.status {
            200..300 => Ok(()),
            status => Err(WebhookError::Status { status, retry_after: answer.retry_after }),
        }
    }
}

impl WebhookError {
    /// The pause that the receiver asks for.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Status { retry_after, .. } => *retry_after,
            _ => None,
        }
    }
}

fn without_path(error: HttpError) -> WebhookError {
    WebhookError::Http(match error {
        HttpError::Redirect { at, status, .. } => {
            format!("{at} redirects (status {status}), which is not followed: set `url` to the address it redirects to")
        }
        HttpError::Answer { at, reason, .. } => format!("the answer of {at} cannot be used: {reason}"),
        other => other.to_string(),
    })
}
