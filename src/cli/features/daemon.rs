//! What the verbs ask of the daemon.

use std::time::Duration;

use anyhow::{Context, bail};
use bytes::Bytes;
use ledge_base::toml_check::from_text;
use ledge_egress::{DaemonAddress, DaemonAnswer, DaemonConnection, Download};
use ledge_features::value::{ScalarType, ValueType};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value as Json, json};

use crate::cli::Globals;
use crate::cli::server::ServerArgs;
use crate::cli::top::own_daemon;

/// How often a daemon that is busy is asked again.
const TRIES: u32 = 30;

/// A daemon.
pub struct Daemon {
    address: DaemonAddress,
    connection: Option<DaemonConnection>,
}

/// A feature view as `GET /feature-views` has it.
#[derive(Debug, Clone, Deserialize)]
pub struct View {
    pub name: String,
    pub entities: Vec<String>,
    pub join_keys: Vec<JoinKey>,
    pub schema: Vec<Column>,
    pub aggregations: Vec<Json>,
    pub ttl_s: f64,
    pub source: Source,
}

#[derive(Debug, Clone, Deserialize)]
pub struct JoinKey {
    pub name: String,
    #[serde(deserialize_with = "from_text")]
    pub value_type: ScalarType,
}

#[derive(Debug, Clone, Deserialize)]
pub struct Column {
    pub name: String,
    #[serde(deserialize_with = "from_text")]
    pub dtype: ValueType,
}

#[derive(Debug, Clone, Deserialize)]
pub struct Source {
    pub timestamp_field: String,
}

impl View {
    /// Join keys, then features that are columns, with their types.
    pub fn columns(&self) -> Vec<(String, ValueType)> {
        let keys = self.join_keys.iter().map(|key| (key.name.clone(), ValueType::Scalar(key.value_type)));
        keys.chain(self.schema.iter().map(|column| (column.name.clone(), column.dtype))).collect()
    }
}

impl Daemon {
    /// The one at `url`, or the one that has this configuration.
    pub fn new(globals: &Globals, url: Option<&str>, server: &ServerArgs) -> anyhow::Result<Self> {
        let url = match url {
            Some(url) => url.to_owned(),
            None => own_daemon(&globals.load_config()?.http.listen).context("say which server with --url")?,
        };
        Ok(Self { address: server.at(&url)?, connection: None })
    }

    /// Another connection to the same one.
    pub fn another(&self) -> Self {
        Self { address: self.address.clone(), connection: None }
    }

    /// The connection.
    pub async fn connection(&mut self) -> anyhow::Result<&mut DaemonConnection> {
        Ok(match &mut self.connection {
            Some(connection) => connection,
            none => none.insert(DaemonConnection::open(&self.address).await?),
        })
    }

    /// The JSON at `path`.
    pub async fn get<T: DeserializeOwned>(&mut self, path: &str) -> anyhow::Result<T> {
        let answer = self.connection().await?.get(path).await?;
        read(&checked(answer)?)
    }

    /// The JSON that a post of JSON is answered with.
    pub async fn post<T: DeserializeOwned>(&mut self, path: &str, body: &Json) -> anyhow::Result<T> {
        read(&checked(self.try_post(path, body).await?)?)
    }

    /// The answer to a post of JSON, whatever it is; a daemon that is busy is asked again.
    pub async fn try_post(&mut self, path: &str, body: &Json) -> anyhow::Result<DaemonAnswer> {
        let body = Bytes::from(serde_json::to_vec(body)?);
        let headers = [("content-type", "application/json")];
        for _ in 1..TRIES {
            let answer = self.connection().await?.post(path, &headers, body.clone()).await?;
            if !matches!(answer.status, 429 | 503) {
                return Ok(answer);
            }
            tokio::time::sleep(answer.retry_after.unwrap_or(Duration::from_secs(1))).await;
        }
        Ok(self.connection().await?.post(path, &headers, body).await?)
    }

    /// A large answer.
    pub async fn download(&mut self, path: &str) -> anyhow::Result<Download> {
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
    pub async fn view(&mut self, name: &str) -> anyhow::Result<View> {
        let views: Views = self.get("/feature-views").await?;
        let names: Vec<_> = views.feature_views.iter().map(|view| view.name.clone()).collect();
        let found = views.feature_views.into_iter().find(|view| view.name == name);
        found.with_context(|| format!("feature view '{name}' does not exist; there are: {}", names.join(", ")))
    }
}

/// All feature views.
#[derive(Debug, Deserialize)]
pub struct Views {
    pub feature_views: Vec<View>,
}

/// The body of an answer that is a success.
pub fn checked(answer: DaemonAnswer) -> anyhow::Result<Bytes> {
    if answer.status == 200 { Ok(answer.body) } else { bail!("{}", message(answer.status, &answer.body)) }
}

fn read<T: DeserializeOwned>(body: &[u8]) -> anyhow::Result<T> {
    serde_json::from_slice(body).context("the server answers in another form; is it of another version?")
}

/// What is said to a user who may not: without a key, the command line has no credential but the user that runs it.
const ANOTHER_USER: &str = "Or show an API key with --key-file FILE; or run this command on the box as root or as the user \
                            that Ledge runs as: sudo -u ledge ledge ...";

/// What an error answer says, in Ledge's own form or in Feast's.
pub fn message(status: u16, body: &[u8]) -> String {
    let json: Json = serde_json::from_slice(body).unwrap_or_default();
    let inner: Json = json.as_str().and_then(|text| serde_json::from_str(text).ok()).unwrap_or(json!(null));
    let found = json.get("error").or_else(|| inner.get("message")).or_else(|| json.pointer("/detail/0/msg"));
    let told = found.and_then(Json::as_str);
    let told = told.map_or_else(|| format!("the server answers with status {status}"), str::to_owned);
    if status == 401 { format!("{told}. {ANOTHER_USER}") } else { told }
}
