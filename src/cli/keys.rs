//! `ledge keys`: API keys.

use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use clap::{Args, Subcommand};
use ledge_base::clock;
use ledge_base::names::{FeatureName, KeyName, ModelName};
use ledge_base::token_bucket::CallRate;
use ledge_identity::access::{Role, ViewScope};
use ledge_identity::api_key::ApiKey;
use ledge_identity::keys::{ApiKeyDocument, ApiKeyExpiry, ApiKeyRecord, ApiKeyStore, DEFAULT_LIFETIME, NewApiKey};
use ledge_models::repository::ModelFolders;
use ledge_updates::configuration::managed_models;
use serde_json::json;

use super::features::show::columns;
use super::models::missing::{self, AlternativeSources};
use super::{Exit, GlobalArgs, Output};

/// The arguments of `ledge keys`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct KeysArgs {
    /// Write JSON instead of text.
    #[arg(long, global = true)]
    pub json: bool,
    #[command(subcommand)]
    pub command: KeysCommand,
}

/// The verbs below `ledge keys`.
#[derive(Debug, Subcommand)]
pub enum KeysCommand {
    /// Create a key, and print it once: it cannot be shown again.
    ///
    /// The server accepts it within a second, without a restart. Create one key for each caller, so that each can be
    /// revoked separately.
    Create(CreateApiKeyArgs),
    /// List all keys, revoked ones included, with their roles and limits; the secrets are not stored.
    List,
    /// Revoke a key permanently. The server refuses it within a second.
    Revoke {
        /// The name or the id of the key.
        #[arg(value_name = "NAME|ID")]
        key: String,
    },
}

/// The arguments of `ledge keys create`.
#[derive(Debug, Args)]
pub struct CreateApiKeyArgs {
    /// The name of the holder: letters, digits, "." "_" and "-". It appears in the logs and is never used for another
    /// key.
    #[arg(value_name = "NAME")]
    pub name: KeyName,
    /// A role of the holder: viewer, infer, feature-writer, operator, admin, auditor or
    /// camera-viewer. Can be repeated.
    #[arg(long, value_name = "ROLE", required = true)]
    pub role: Vec<Role>,
    /// A model that the key is for. Can be repeated [default: all models].
    #[arg(long, value_name = "NAME")]
    pub model: Vec<ModelName>,
    /// A feature view whose values the key may read and push. Can be repeated; "*" is all feature views.
    ///
    /// Without this option the key is for all feature views, or for none if --model is given: a model reads the
    /// features of its inputs for every caller.
    #[arg(long, value_name = "NAME", value_parser = feature_view)]
    pub feature_view: Vec<String>,
    /// The end of the key: a duration such as 12h, 90d or 52w, a time such as 2027-01-01T00:00:00Z, or never.
    #[arg(long, value_name = "TIME", default_value = DEFAULT_LIFETIME)]
    pub expires: ApiKeyExpiry,
    /// The most requests per second, on average. 0 is no limit.
    #[arg(long, value_name = "NUMBER", default_value = "0", value_parser = rate)]
    pub max_rate: CallRate,
    /// The most requests at the same time. 0 is no limit.
    #[arg(long, value_name = "NUMBER", default_value = "0", value_parser = clap::value_parser!(u32).range(..=1_000_000))]
    pub max_concurrent: u32,
    /// The file to write the key to, which must not exist; only its owner may read it [default: standard output].
    #[arg(long, value_name = "FILE")]
    pub output: Option<PathBuf>,
}

const EXAMPLES: &str = "\
Examples:
  ledge keys create till-7 --role infer --model minilm --expires 90d --output till-7.key
  ledge keys create grafana --role viewer
  ledge keys create erp --role feature-writer --feature-view customers --max-rate 50
  ledge keys list
  ledge keys revoke till-7

A caller sends the key as Authorization: Bearer ledge_... or as X-API-Key.";

fn feature_view(text: &str) -> Result<String, String> {
    if text != "*" {
        text.parse::<FeatureName>().map_err(|error| error.to_string())?;
    }
    Ok(text.to_owned())
}

fn rate(text: &str) -> Result<CallRate, String> {
    let rate = text.parse().ok().and_then(CallRate::new);
    rate.ok_or_else(|| "expected a number of requests per second from 0.001 to 1000000, or 0 for no limit".to_owned())
}

/// Runs the verb.
pub fn run(globals: &GlobalArgs, args: &KeysArgs, out: &mut Output) -> anyhow::Result<Exit> {
    let store = ApiKeyStore::new(&globals.load_section("state")?.state.path);
    let now_ms = clock::FLOOR.now_millis();
    match &args.command {
        KeysCommand::Create(new) => {
            create(&store, new, now_ms, args.json, out)?;
            warn_of_missing_models(globals, &new.model);
        }
        KeysCommand::List if args.json => {
            let keys: Vec<_> = store.list()?.iter().map(|key| ApiKeyDocument::new(key, now_ms)).collect();
            writeln!(out, "{}", serde_json::to_string_pretty(&keys)?)?;
        }
        KeysCommand::List => list(&store.list()?, now_ms, out)?,
        KeysCommand::Revoke { key } => {
            let key = store.revoke(key, now_ms)?;
            if args.json {
                writeln!(out, "{}", serde_json::to_string(&ApiKeyDocument::new(&key, now_ms))?)?;
            } else {
                writeln!(out, "The key '{}' ({}) is revoked.", key.name, key.id)?;
            }
        }
    }
    Ok(Exit::Success)
}

fn create(
    store: &ApiKeyStore,
    args: &CreateApiKeyArgs,
    now_ms: u64,
    is_json: bool,
    out: &mut Output,
) -> anyhow::Result<()> {
    let expires_ms = args.expires.millis(now_ms).map_err(|error| anyhow::anyhow!("--expires {error}"))?;
    let scope = (!args.feature_view.is_empty())
        .then(|| serde_json::from_value::<ViewScope>(json!(args.feature_view)))
        .transpose();
    let new = NewApiKey {
        name: args.name.clone(),
        roles: args.role.clone(),
        models: (!args.model.is_empty()).then(|| args.model.clone()),
        feature_views: scope.context("--feature-view")?,
        expires_ms,
        max_rate: args.max_rate,
        max_concurrent: args.max_concurrent,
    };

    // Create the file before the store changes: without a file to write to there must be no key.
    let mut file = args.output.as_deref().map(KeyOutputFile::create).transpose()?;
    let created = store.create(&new, now_ms);
    if created.is_err() {
        file.iter().for_each(KeyOutputFile::remove);
    }
    let (key, record) = created?;
    if let Err(error) = write_key(&key, &record, now_ms, is_json, file.as_mut(), out) {
        // The holder has at most a part of the key, and it cannot be shown again.
        let record = store.revoke(&record.id.to_string(), now_ms).with_context(|| {
            format!(
                "the key '{0}' could not be written ({error:#}) and could not be revoked: run `ledge keys revoke {0}`",
                record.name
            )
        })?;
        file.iter().for_each(KeyOutputFile::remove);
        anyhow::bail!(
            "the key '{}' could not be written ({error:#}), so it was revoked: create one with another name",
            record.name
        );
    }

    let until =
        record.expires_ms.map_or_else(|| "never expires".to_owned(), |at| format!("expires {}", clock::rfc3339(at)));
    let place = args.output.as_ref().map_or_else(
        || "It is not shown again: store it as a secret.".to_owned(),
        |path| format!("It is stored only in {}.", path.display()),
    );
    let (roles, models, views) = (roles(&record), models(&record), feature_views(&record));
    let (name, id) = (&record.name, record.id);
    let summary = format!("The key '{name}' ({id}) is for {roles} with {models} and {views}, and {until}. {place}");
    if !is_json {
        let _ = writeln!(std::io::stderr(), "{summary}");
    }
    if store.is_half_full() {
        let _ = writeln!(std::io::stderr(), "The store of API keys is more than half full. Revoked keys stay in it.");
    }
    Ok(())
}

/// Warns of models that the key is for and that this box does not have: a misspelt name refuses every call of its
/// holder.
fn warn_of_missing_models(globals: &GlobalArgs, models: &[ModelName]) {
    // With mistakes elsewhere in the configuration, the models may be in another place.
    let Ok(config) = globals.load_config() else { return };
    let (managed, sources) = (managed_models(&config.updates.path), ModelFolders::of(&config.repository));
    for name in models.iter().filter(|name| !managed.contains(*name)) {
        if let Err(missing) = missing::require(&sources, name, AlternativeSources::Root) {
            let _ = writeln!(std::io::stderr(), "warning: --model {name}: {missing}");
        }
    }
}

/// Writes the key to its file or to standard output. Standard output is only the key, or the record of the key as JSON.
fn write_key(
    key: &ApiKey,
    record: &ApiKeyRecord,
    now_ms: u64,
    is_json: bool,
    file: Option<&mut KeyOutputFile>,
    out: &mut Output,
) -> anyhow::Result<()> {
    let is_in_file = file.is_some();
    if let Some(file) = file {
        file.write(&key.reveal())?;
    }
    if is_json {
        let mut document = serde_json::to_value(ApiKeyDocument::new(record, now_ms))?;
        if let Some(document) = document.as_object_mut().filter(|_| !is_in_file) {
            document.insert("key".to_owned(), key.reveal().into());
        }
        writeln!(out, "{document}")?;
    } else if !is_in_file {
        writeln!(out, "{}", key.reveal())?;
    }
    Ok(out.flush()?)
}

/// The file of --output.
struct KeyOutputFile {
    path: PathBuf,
    file: File,
}

impl KeyOutputFile {
    fn create(path: &Path) -> anyhow::Result<Self> {
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
        let file = file.with_context(|| format!("{} cannot be created for the key", path.display()))?;
        Ok(Self { path: path.to_owned(), file })
    }

    fn write(&mut self, key: &str) -> anyhow::Result<()> {
        let written = writeln!(self.file, "{key}").and_then(|()| self.file.sync_all());
        written.with_context(|| format!("{} cannot be written", self.path.display()))
    }

    /// Removes the file of a key that is not valid.
    fn remove(&self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

fn list(keys: &[ApiKeyRecord], now_ms: u64, out: &mut Output) -> anyhow::Result<()> {
    if keys.is_empty() {
        writeln!(out, "There are no API keys. Create one with `ledge keys create NAME --role infer`.")?;
        return Ok(());
    }
    let head = ["NAME", "ID", "STATE", "ROLES", "MODELS", "FEATURE VIEWS", "LIMITS", "CREATED", "EXPIRES"]
        .map(str::to_owned)
        .to_vec();
    let mut rows = vec![head];
    for key in keys {
        let expires = key.expires_ms.map_or_else(|| "never".to_owned(), clock::rfc3339);
        rows.push(vec![
            key.name.to_string(),
            key.id.to_string(),
            key.state(now_ms).as_str().to_owned(),
            roles(key),
            models(key),
            feature_views(key),
            limits(key),
            clock::rfc3339(key.created_ms),
            expires,
        ]);
    }
    Ok(columns(&rows, out)?)
}

fn roles(key: &ApiKeyRecord) -> String {
    key.roles.iter().map(|role| role.as_str()).collect::<Vec<_>>().join(",")
}

fn models(key: &ApiKeyRecord) -> String {
    let listed = |models: &Vec<ModelName>| models.iter().map(ModelName::as_str).collect::<Vec<_>>().join(",");
    key.models.as_ref().map_or_else(|| "all models".to_owned(), listed)
}

fn feature_views(key: &ApiKeyRecord) -> String {
    match key.access().feature_views().views() {
        None => "all feature views".to_owned(),
        Some([]) => "no feature view".to_owned(),
        Some(views) => views.iter().map(FeatureName::as_str).collect::<Vec<_>>().join(","),
    }
}

fn limits(key: &ApiKeyRecord) -> String {
    let rate = key.max_rate.is_set().then(|| format!("{}/s", key.max_rate));
    let most = (key.max_concurrent > 0).then(|| format!("{} at a time", key.max_concurrent));
    let limits: Vec<_> = rate.into_iter().chain(most).collect();
    if limits.is_empty() { "none".to_owned() } else { limits.join(", ") }
}
