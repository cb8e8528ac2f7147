//! The client for the HTTP interface of a daemon.

use std::time::Duration;

use anyhow::{Context, bail};
use bytes::Bytes;
use ledge_base::toml_check::from_text;
use ledge_egress::{DaemonAddress, DaemonAnswer, DaemonConnection, DaemonDownload};
use ledge_features::value::{ScalarType, ValueType};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value as Json, json};

use crate::cli::GlobalArgs;
use crate::cli::server::ServerArgs;

/// The most requests for one call while the daemon answers 429 or 503.
const BUSY_ATTEMPTS_MAX: u32 = 30;

/// The longest pause before the next attempt, even if the server asks for a longer one, because a person waits for this
/// command.
const BUSY_PAUSE_MAX: Duration = Duration::from_mins(1);

/// A client of one daemon, which connects at its first request.
pub struct DaemonClient {
    address: DaemonAddress,
    connection: Option<DaemonConnection>,
}

/// A feature view in the answer of `GET /feature-views`.
#[derive(Debug, Clone, Deserialize)]
pub struct ViewDeclaration {
    pub name: String,
    pub entities: Vec<String>,
    pub join_keys: Vec<ListedJoinKey>,
    pub schema: Vec<ColumnDeclaration>,
    pub aggregations: Vec<Json>,
    pub ttl_s: f64,
    pub source: ViewSource,
}

#[derive(Debug, Clone, Deserialize)]
pub struct ListedJoinKey {
    pub name: String,
    #[serde(deserialize_with = "from_text")]
    pub value_type: ScalarType,
}

#[derive(Debug, Clone, Deserialize)]
pub struct ColumnDeclaration {
    pub name: String,
    #[serde(deserialize_with = "from_text")]
    pub dtype: ValueType,
}

#[derive(Debug, Clone, Deserialize)]
pub struct ViewSource {
    pub timestamp_field: String,
}

impl ViewDeclaration {
    /// The names and types of the join keys, then of the features that are columns.
    pub fn columns(&self) -> Vec<(String, ValueType)> {
        let keys = self.join_keys.iter().map(|key| (key.name.clone(), ValueType::Scalar(key.value_type)));
        keys.chain(self.schema.iter().map(|column| (column.name.clone(), column.dtype))).collect()
    }
}

impl DaemonClient {
    /// A client of the daemon that the arguments name, or else of the one with this configuration.
    pub fn new(globals: &GlobalArgs, server: &ServerArgs) -> anyhow::Result<Self> {
        Ok(Self::at(server.address(globals)?))
    }

    /// A client of the daemon at this address.
    pub fn at(address: DaemonAddress) -> Self {
        Self { address, connection: None }
    }

    /// A client with another connection to the same daemon.
    pub fn another(&self) -> Self {
        Self::at(self.address.clone())
    }

    /// The connection, opened if necessary.
    pub async fn connection(&mut self) -> anyhow::Result<&mut DaemonConnection> {
        Ok(match &mut self.connection {
            Some(connection) => connection,
            none => none.insert(DaemonConnection::open(&self.address).await?),
        })
    }

    /// The JSON answer to a GET.
    pub async fn get<T: DeserializeOwned>(&mut self, path: &str) -> anyhow::Result<T> {
        let answer = self.connection().await?.get(path).await?;
        read(&checked(answer)?)
    }

    /// The JSON answer to a POST of JSON.
    pub async fn post<T: DeserializeOwned>(&mut self, path: &str, body: &Json) -> anyhow::Result<T> {
        read(&checked(self.try_post(path, body).await?)?)
    }

    /// The answer to a POST of JSON, with any status. Repeats the request while the daemon is busy.
    pub async fn try_post(&mut self, path: &str, body: &Json) -> anyhow::Result<DaemonAnswer> {
        let body = Bytes::from(serde_json::to_vec(body)?);
        let headers = [("content-type", "application/json")];
        for _ in 1..BUSY_ATTEMPTS_MAX {
            let answer = self.connection().await?.post(path, &headers, body.clone()).await?;
            if !matches!(answer.status, 429 | 503) {
                return Ok(answer);
            }
            tokio::time::sleep(answer.retry_after.unwrap_or(Duration::from_secs(1)).min(BUSY_PAUSE_MAX)).await;
        }
        Ok(self.connection().await?.post(path, &headers, body).await?)
    }

    /// A large answer, which is read in pieces.
    pub async fn download(&mut self, path: &str) -> anyhow::Result<DaemonDownload> {
        let mut download = self.connection().await?.download(path).await?;
        if download.status == 200 {
            return Ok(download);
        }
        let mut body = Vec::new();
        while let Some(piece) = download.next().await? {
            body.extend_from_slice(&piece);
        }
        bail!("{}", message(download.status, &body))
    }

    /// A declared feature view.
    pub async fn view(&mut self, name: &str) -> anyhow::Result<ViewDeclaration> {
        let views: ViewList = self.get("/feature-views").await?;
        let names: Vec<_> = views.feature_views.iter().map(|view| view.name.clone()).collect();
        let found = views.feature_views.into_iter().find(|view| view.name == name);
        found.with_context(|| {
            format!("feature view '{name}' does not exist; existing feature views: {}", names.join(", "))
        })
    }
}

/// The answer of `GET /feature-views`.
#[derive(Debug, Deserialize)]
pub struct ViewList {
    pub feature_views: Vec<ViewDeclaration>,
}

/// The body of an answer with status 200; other statuses are errors.
pub fn checked(answer: DaemonAnswer) -> anyhow::Result<Bytes> {
    if answer.status == 200 { Ok(answer.body) } else { bail!("{}", message(answer.status, &answer.body)) }
}

fn read<T: DeserializeOwned>(body: &[u8]) -> anyhow::Result<T> {
    serde_json::from_slice(body).context("cannot read the answer of the server: it may run another version of Ledge")
}

/// The advice after a 401: without an API key, the only credential of the command line is the user that runs it.
const CREDENTIAL_ADVICE: &str = "Or add an API key with --key-file FILE, or run this command on the box as root or as \
                                 the user that Ledge runs as: sudo -u ledge ledge ...";

/// The message in an error answer, in Ledge's own form or in Feast's.
pub fn message(status: u16, body: &[u8]) -> String {
    let json: Json = serde_json::from_slice(body).unwrap_or_default();
    let inner: Json = json.as_str().and_then(|text| serde_json::from_str(text).ok()).unwrap_or(json!(null));
    let found = json.get("error").or_else(|| inner.get("message")).or_else(|| json.pointer("/detail/0/msg"));
    let message = found.and_then(Json::as_str);
    let message = message.map_or_else(|| format!("the server answered with status {status}"), str::to_owned);
    if status == 401 { format!("{message}. {CREDENTIAL_ADVICE}") } else { message }
}
